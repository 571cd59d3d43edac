"""Child processes that are given tasks while this process goes on with its work, made and ended as in `forked`.

A task is a text, as a child was copied before anybody knew of it. The first child is alone until it comes to a task
that takes long, and says so: where all is done already, this process is copied once. Of the tasks that wait, the
longest is taken first. Only the thread that asked for helpers makes any.
"""

from __future__ import annotations

import heapq
import mmap
import os
import select
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, get_ident
from typing import TypeAlias

from . import forked

Serve: TypeAlias = Callable[[str, Callable[[], None]], bool]
"""Does a task in a child, and calls what it is given before it does what takes long; whether it did so."""
ROOM = 1 << 24
"""Bytes that the texts of all tasks have: those that do not fit are left."""
NEWS = 1024
"""Bytes of news that are read at once."""
_WHERE = struct.Struct("=II")
"""Where a task's text begins, and how long it is: a child that reads this has the task alone."""


class Helpers:
    """Children that do tasks, those that take long first. What is left when this ends is not done."""

    def __init__(self, ready: Callable[[], Serve | None], most: int) -> None:
        """`ready` tells what children do, or None as long as there must be none; there are `most` of them at most."""
        self._ready, self._most, self._thread = ready, most, get_ident()
        self._serve: Serve | None = None
        self._waiting: list[tuple[int, int, str]] = []
        self._children: list[int] = []
        self._ends: dict[str, int] = {}
        self._lock = Lock()
        self._copying = 0.0
        self._told = self._given = self._done = self._end = 0
        self.needed = False
        """Whether a child came to a task that takes long."""

    def __enter__(self) -> Helpers:
        return self

    def __exit__(self, *_: object) -> None:
        for name in tuple(self._ends):
            self._close(name)
        for child in self._children:
            forked.stop(child)
        if self._serve is not None:
            self._texts.close()

    def give(self, text: str, length: int) -> None:
        """Have a task done when its turn comes."""
        with self._lock:
            self._told += 1
            heapq.heappush(self._waiting, (-length, self._told, text))
        self.go_on()

    def go_on(self) -> None:
        """Hear of what was done, and hand out what waits to children that have nothing to do."""
        with self._lock:
            self._hear(0.0)
            self._hand_out()

    def decide(self, patience: float = forked.PATIENCE) -> None:
        """Wait until a child has said whether helpers are needed, or has nothing to do; then make all of them."""
        with self._lock:
            while self._given and not self.needed:
                if not self._hear(patience):
                    forked.give_up(self._given)
                    break
            if self.needed:
                self._hand_out()

    def finish(self, patience: float = forked.PATIENCE) -> int:
        """Wait until all is done, if helpers are needed; how many tasks took long, and went well. No child is made any
        more."""
        with self._lock:
            self._hear(0.0)
            if not self.needed:
                return 0
            self._close("tell")
            while self._given or self._waiting:
                self._hand_out()
                if not self._waiting:
                    self._close("put")  # a child ends when it is done
                if (heard := self._hear(patience)) is None:
                    forked.give_up(self._given)
                if not heard:
                    break
        return self._done

    def _hear(self, patience: float) -> bool | None:
        """Whether children told anything; None where they did not in so many seconds."""
        if "heard" not in self._ends:
            return None
        waiting = select.poll()
        waiting.register(self._ends["heard"], select.POLLIN)
        if not waiting.poll(1000 * patience):
            return None
        news = os.read(self._ends["heard"], NEWS)
        self.needed = self.needed or b"!" in news
        self._done += news.count(b"+")
        self._given -= len(news) - news.count(b"!")
        return bool(news)  # none where all children ended

    def _hand_out(self) -> None:
        while self._waiting and (self._given < len(self._children) or self._one_more()):
            text = heapq.heappop(self._waiting)[2].encode()
            if self._end + len(text) > ROOM:
                continue
            self._texts[self._end : self._end + len(text)] = text
            os.write(self._ends["put"], _WHERE.pack(self._end, len(text)))
            self._end += len(text)
            self._given += 1

    def _one_more(self) -> bool:
        """Make a child, if there may be one more; whether there is one."""
        few = len(self._children) < (self._most if self.needed else 1) and self._copying < forked.LONGEST
        if not few or get_ident() != self._thread or (self._serve is not None and "tell" not in self._ends):
            return False
        if self._serve is None and not self._prepared():
            return False
        began = time.monotonic()
        with forked.quiet(), suppress(OSError, RuntimeError):
            child = os.fork()
            if not child:
                forked.alone(self._work)
            self._children.append(child)
            self._copying += time.monotonic() - began
            return True
        self._copying = forked.LONGEST  # no more processes, or the interpreter is about to end
        return False

    def _prepared(self) -> bool:
        """Whether there may be children: then what they need is there."""
        self._serve = self._ready()
        if self._serve is None:
            return False
        self._texts = mmap.mmap(-1, ROOM)
        self._ends["queue"], self._ends["put"] = os.pipe()
        self._ends["heard"], self._ends["tell"] = os.pipe()
        return True

    def _work(self) -> None:
        """What a child does until there are no more tasks, and nobody who would give any."""
        self._close("put")
        tell = self._ends["tell"]
        while where := os.read(self._ends["queue"], _WHERE.size):
            start, size = _WHERE.unpack(where)
            try:
                assert self._serve is not None
                long = self._serve(self._texts[start : start + size].decode(), lambda: _say(tell, b"!"))
            except Exception:  # whoever gave it does it again, and says what is wrong
                _say(tell, b"-")
            else:
                _say(tell, b"+" if long else b"=")

    def _close(self, name: str) -> None:
        with suppress(KeyError, OSError):
            os.close(self._ends.pop(name))


def _say(tell: int, what: bytes) -> None:
    os.write(tell, what)
