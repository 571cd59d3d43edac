"""A federation of real sites: acclimate over a Flower network, and a fleet on one machine to try it out."""
