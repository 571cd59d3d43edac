"""Clients at the nodes of a Flower network: what server and nodes send each other, and what the server checks."""
