"""Layers that stay pure and fast under `vmap`, where every client has its own weights."""
