"""Testing trained experiments: the grid of adapters and streams, and the table it fills."""

from .grid import Names, Test, evaluate, rounds_to_test
from .table import Refused, Row, Table

__all__ = ["Names", "Refused", "Row", "Table", "Test", "evaluate", "rounds_to_test"]
