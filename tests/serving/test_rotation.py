"""The log in segments: the same bits from all of them, from those that are kept, and after a crash at any moment."""

import contextlib
import os
import shutil

import pytest
from federation import lives, stream

from acclimate.serving import checkpoint
from acclimate.serving.host import Host
from acclimate.serving.log import MARK
from acclimate.serving.records import Ask
from acclimate.serving.replay import replay
from acclimate.serving.segments import read, segments
from acclimate.serving.service import Keeping, Service
from acclimate.store import RunError

OPERATIONS = ("open", "write", "fsync", "replace", "unlink", "close", "ftruncate")


def opened(folder, **keeping) -> Service:
    checkpoint.begin(folder, lives(clients=2), "digits")
    return Service(Host(lives(clients=2)), folder, Keeping(**{"checkpoint_s": 1e9, **keeping}))  # none by the clock


def asks(i: int) -> list[Ask]:
    """The requests of step `i`: of one client, or of both."""
    return [Ask(c, f"r{i}", stream(c, 80)[3 * i : 3 * i + 3]) for c in ((0, 1), (1,), (0,))[i % 3]]


def test_segments_are_one_log_with_the_same_bits(tmp_path):
    plain = opened(tmp_path / "one")
    service = opened(tmp_path / "many", segment=9000)
    for i in range(10):
        for s in (plain, service):
            s.answer(asks(i))
    found = segments(tmp_path / "many" / checkpoint.LOG)
    assert len(found) > 2 and all(s.size < 9000 + 5000 for s in found)
    assert [s.start for s in found[1:]] == [s.start + s.size for s in found[:-1]]
    assert {oct(p.stat().st_mode)[-3:] for _, p in found} == {"600"}
    before = service.digests()
    assert before == plain.digests()
    service.log.close()  # as a kill would
    again = opened(tmp_path / "many", segment=9000)
    assert again.digests() == before == again.close()
    done = replay(tmp_path / "many")
    assert done.exact and done.digests == before and done.steps == 10 and done.marks == len(found)
    middle = found[1].path
    raw = middle.read_bytes()
    middle.write_bytes(raw[:-1])
    with pytest.raises(RunError, match=f"{middle.name} is damaged"):
        replay(tmp_path / "many")
    middle.unlink()
    with pytest.raises(RunError, match="is damaged at byte"):
        replay(tmp_path / "many")


def test_recovery_reads_what_came_after_the_checkpoint_alone(tmp_path, monkeypatch):
    service = opened(tmp_path, segment=9000, remember=2)
    for i in range(10):
        service.answer(asks(i))
    before, found = service.digests(), segments(tmp_path / checkpoint.LOG)
    service.log.close()
    for old in found[:-2]:  # nobody needs them to go on
        old.path.unlink()
    applied, compute = [], Host.compute
    monkeypatch.setattr(Host, "compute", lambda self, calls: applied.append(calls) or compute(self, calls))
    again = opened(tmp_path, segment=9000, remember=2)
    assert again.digests() == before and len(applied) <= 3
    with pytest.raises(RunError, match=f"begins at byte {found[-2].start} without"):
        replay(tmp_path)
    with pytest.raises(RunError, match="but byte 0 is needed"):
        list(read(tmp_path / checkpoint.LOG, 0))


def test_old_segments_go_where_a_number_is_kept(tmp_path):
    keeping = {"segment": 9000, "segments": 2, "remember": 3}
    service = opened(tmp_path, **keeping)
    for i in range(14):
        service.answer(asks(i))
    log = tmp_path / checkpoint.LOG
    found = segments(log)
    assert len(found) == 2 and found[0].start > 0
    assert sorted(p.name for p in log.glob("*.safetensors")) == [s.states.name for s in found]
    before = service.digests()
    service.log.close()
    done = replay(tmp_path)
    assert done.exact and done.digests == before and 0 < done.steps < 14
    assert opened(tmp_path, **keeping).close() == before
    (tmp_path / checkpoint.STATES).unlink()  # the states that were kept with the first segment do as well
    last = opened(tmp_path, **keeping)
    assert last.digests() == before
    assert [name for _, name in last.ledger.known] == ["r12", "r12", "r13"][-len(last.ledger.known) :]


def test_ids_of_late_keep_their_segments(tmp_path):
    service = opened(tmp_path, segment=9000, segments=1)
    for i in range(8):
        service.answer(asks(i))
    assert segments(tmp_path / checkpoint.LOG)[0].start == 0  # r0 may still be asked for
    service.log.close()
    again = opened(tmp_path, segment=9000, segments=1)
    before = again.digests()
    again.answer(asks(0))
    assert again.digests() == before


class Crash(BaseException):
    """The end of the process."""


def crashing(monkeypatch, at: int, after: bool) -> list[str]:
    """Let the process end at the file operation of this number: before it is done, or after. What was begun."""
    begun: list[str] = []

    def wrapped(name, real):
        def operation(*given, **named):
            begun.append(name)
            if len(begun) - 1 > at or (len(begun) - 1 == at and not after):
                raise Crash
            out = real(*given, **named)
            if len(begun) - 1 == at:
                raise Crash
            return out

        return operation

    for name in OPERATIONS:
        monkeypatch.setattr(os, name, wrapped(name, getattr(os, name)))
    return begun


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_crash_at_any_moment_of_a_rotation_loses_nothing(tmp_path, monkeypatch, after):
    keeping = {"segment": 1, "segments": 1, "remember": 1}  # a rotation after every step, which deletes a segment
    base = tmp_path / "base"
    monkeypatch.setattr(os, "fsync", lambda file: None)  # the machine goes on, only the process ends
    service = opened(base, **keeping)
    service.answer(asks(0))
    service.log.close()
    whole = opened(tmp_path / "whole")
    for i in range(4):
        whole.answer(asks(i))
    want = whole.digests()
    for at in range(200):
        folder = tmp_path / str(at)
        shutil.copytree(base, folder)
        service = opened(folder, **keeping)
        service.answer(asks(1))
        with monkeypatch.context() as patched:
            begun = crashing(patched, at, after)
            try:
                service.answer(asks(2))
            except Crash:
                pass
            else:
                break
        service.log.close() if begun[at] != "close" else _let_go(service)
        again = opened(folder, **keeping)
        again.answer(asks(2))  # nobody had its answer: it comes again
        again.answer(asks(3))
        assert again.digests() == want, (at, begun)
        assert again.close() == want
        if at % 4 == 0:
            done = replay(folder)
            assert done.exact and done.digests == want and not done.torn
        shutil.rmtree(folder)
    assert set(begun) == {*OPERATIONS} - {"ftruncate"}


def _let_go(service):
    for file in (service.log.file, service.log.lock):
        with contextlib.suppress(OSError):
            os.close(file)


def test_a_rotation_that_fails_goes_on_in_the_old_segment(tmp_path, monkeypatch, caplog):
    service = opened(tmp_path, segment=9000)
    real = os.fsync

    def no_new_names(file):
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(28, "No space left on device")
        real(file)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", no_new_names)
        for i in range(5):  # the segment that was not begun is left empty, before the end
            service.answer(asks(i))
    assert "no checkpoint: cannot begin" in caplog.text
    before = service.digests()
    service.log.close()
    again = opened(tmp_path, segment=9000)
    assert again.digests() == before
    again.rotate()
    again.answer(asks(7))
    before = again.close()
    assert replay(tmp_path).digests == before
    raw = segments(tmp_path / checkpoint.LOG)[-1].path.read_bytes()
    assert raw.startswith(MARK)
