"""acclimate as a Flower app."""
