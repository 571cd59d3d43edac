"""Testing trained experiments: the grid of adapters and streams, the table it fills, and what the adapters did."""

from .analysis import Traces, summary
from .estimate_table import Estimates
from .grid import Cost, Names, Test, Tested, evaluate, rounds_to_test, stream_accuracy
from .rows import Summary, summary_of
from .selection_table import Selection
from .table import Refused, Row, Table

__all__ = [
    "Cost",
    "Estimates",
    "Names",
    "Refused",
    "Row",
    "Selection",
    "Summary",
    "Table",
    "Test",
    "Tested",
    "Traces",
    "evaluate",
    "rounds_to_test",
    "stream_accuracy",
    "summary",
    "summary_of",
]
