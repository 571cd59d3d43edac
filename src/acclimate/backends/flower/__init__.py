"""Clients at the nodes of a Flower network: what is said over the wire, what is checked, and who is there."""
