"""The client half."""

from acclimate.fleet.client_app import app

__all__ = ["app"]
