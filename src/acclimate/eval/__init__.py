"""Testing trained experiments: the grid of adapters and streams, and the table it fills."""

from .grid import Names, evaluate, rounds_to_test
from .table import Refused, Row, Table

__all__ = ["Names", "Refused", "Row", "Table", "evaluate", "rounds_to_test"]
