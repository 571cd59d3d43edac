"""Serving live models: many clients' requests in one step, and a log from which their states can be made again."""

from .host import Call, Host
from .ledger import Conflict
from .records import Ask
from .replay import Replayed, replay
from .service import Service

__all__ = ["Ask", "Call", "Conflict", "Host", "Replayed", "Service", "replay"]
