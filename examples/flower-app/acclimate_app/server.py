"""The server half."""

from acclimate.fleet.server_app import app

__all__ = ["app"]
