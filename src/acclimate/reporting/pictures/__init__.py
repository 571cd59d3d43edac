"""Pictures of data: what clients train on, and what the streams show them. Drawn by the project itself, as PNG."""

from .bubbles import bubble_plot
from .canvas import Canvas
from .preview import picture, preview
from .sheet import contact_sheet

__all__ = ["Canvas", "bubble_plot", "contact_sheet", "picture", "preview"]
