"""Files that others wrote, opened with care: plain files only, no larger than a limit, and JSON that is not too deep.

A pipe or a device in a file's place would wait for ever or never end, and a small file may ask for any memory. So all
that acclimate did not write in this process is opened here.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

MIB = 1 << 20
TEXT_LIMIT = 512 * MIB
"""The largest file of JSON or text that is read."""
DATA_LIMIT = 64 << 30
"""The largest file of arrays that is read whole."""
DEPTH = 64
"""How deep JSON may be nested; what acclimate writes is about ten deep."""
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class FileProblem(ValueError):
    """A file that cannot be used: the sentence names it and says why."""


def opened(path: Path, limit: int = DATA_LIMIT) -> io.BufferedReader:
    """A plain file for reading; `FileProblem` where it is something else or too large.

    A file that does not exist stays a `FileNotFoundError`: callers know what that means.
    """
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as e:
        raise FileProblem(f"{path} cannot be read: {_why(e)}") from e
    about = os.fstat(number)
    if not stat.S_ISREG(about.st_mode):
        os.close(number)
        raise FileProblem(f"{path} is {KINDS.get(stat.S_IFMT(about.st_mode), 'no plain file')}, not a file")
    if about.st_size > limit:
        os.close(number)
        raise FileProblem(f"{path} has {about.st_size:,} bytes; at most {limit:,} are read")
    return os.fdopen(number, "rb")


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "it is a link that leads back to itself"
    return str(getattr(error, "strerror", None) or error)


def checked(path: Path, limit: int = DATA_LIMIT) -> Path:
    """The path, where it is a plain file that can be read: for readers that open files themselves."""
    opened(path, limit).close()
    return path


def content(path: Path, limit: int = DATA_LIMIT) -> bytes:
    """The bytes of a plain file."""
    try:
        with opened(path, limit) as file:
            return file.read()
    except MemoryError as e:
        raise FileProblem(f"{path} does not fit into memory") from e
    except OSError as e:
        if isinstance(e, FileNotFoundError):
            raise
        raise FileProblem(f"{path} cannot be read: {_why(e)}") from e


def text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """The text of a plain file in UTF-8."""
    try:
        return content(path, limit).decode("utf-8")
    except UnicodeDecodeError as e:
        raise FileProblem(f"{path} is damaged: {e}") from e


def parsed(text: str | bytes, where: str) -> Any:
    """What JSON says; `FileProblem` where it is none, or nested too deep to work with."""
    try:
        found = json.loads(text)
    except RecursionError as e:
        raise FileProblem(f"{where} is damaged: its JSON is nested more than {DEPTH} deep") from e
    except (ValueError, UnicodeDecodeError) as e:  # also whole numbers with more digits than Python takes
        raise FileProblem(f"{where} is damaged: {e}") from e
    level = [found]
    for _ in range(DEPTH):
        level = [v for part in level for v in _inner(part)]
        if not level:
            return found
    raise FileProblem(f"{where} is damaged: its JSON is nested more than {DEPTH} deep")


def _inner(value: Any) -> list[Any]:
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [v for v in held if isinstance(v, dict | list)]
