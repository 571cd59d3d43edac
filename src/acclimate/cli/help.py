"""The help of commands: paragraphs that fill the window, and positional arguments, whose help typer may lose."""

from __future__ import annotations

from typing import Any, get_type_hints

import typer
from typer.models import ArgumentInfo


def command(app: typer.Typer) -> Any:
    """The command of an app, whose positional arguments have the help that the functions' annotations give them.

    Click from 8.5 sets every parameter's help to None after typer before 0.21 has set it, and Flower pins that typer.
    Typer keeps the line breaks of a docstring, which is wider than a window of 80 columns: paragraphs get none.
    """
    built = typer.main.get_command(app)
    _restore(built)
    return built


def _restore(built: Any) -> None:
    for below in getattr(built, "commands", {}).values():
        _restore(below)
    if built.help:
        built.help = "\n\n".join(" ".join(part.split()) for part in built.help.split("\n\n"))
    texts = _texts(built.callback) if built.callback else {}
    for parameter in built.params:
        if not getattr(parameter, "help", None):
            parameter.help = texts.get(parameter.name)


def _texts(function: Any) -> dict[str, str | None]:
    """The help of a function's positional arguments by name."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: note.help
        for name, hint in hints.items()
        for note in getattr(hint, "__metadata__", ())
        if isinstance(note, ArgumentInfo)
    }
