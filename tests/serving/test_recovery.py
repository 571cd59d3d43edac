"""What a server goes on from: a log that is whole, or an error; ids and labels that are counted once."""

import asyncio
import shutil
from dataclasses import replace

import pytest
from federation import lives, stream

import acclimate as ac
from acclimate.serving import checkpoint
from acclimate.serving.desk import Desk, Rules
from acclimate.serving.host import Host
from acclimate.serving.log import MARK, read
from acclimate.serving.records import Ask
from acclimate.serving.replay import replay
from acclimate.serving.service import Keeping, Service
from acclimate.store import RunError

FIRST = f"{checkpoint.LOG}/{0:016}"


def opened(folder, own=None, **keeping) -> Service:
    own = own or lives(clients=2)
    found = checkpoint.resumed(folder, own) if checkpoint.begun(folder, own) else own
    checkpoint.begin(folder, found, "digits")
    return Service(Host(found), folder, Keeping(**keeping))


def asked(service: Service, *numbers: int) -> None:
    for i in numbers:
        service.answer([Ask(0, f"r{i}", stream(0, 80)[4 * i : 4 * i + 4])])


def test_a_log_that_ends_before_its_checkpoint_is_not_gone_on_with(tmp_path):
    """As a copy has it whose log was copied first, while the server went on and wrote its checkpoint."""
    service = opened(tmp_path / "served")
    asked(service, 0, 1)
    shutil.copytree(tmp_path / "served", tmp_path / "copy")
    asked(service, 2, 3)
    service.checkpoint()
    written, end = service.log.end, (tmp_path / "copy" / FIRST).stat().st_size
    shutil.copy(tmp_path / "served" / checkpoint.STATES, tmp_path / "copy")
    before = service.close()
    for tail in (b"", MARK + bytes(3)):  # whole records alone, or one that is torn
        with (tmp_path / "copy" / FIRST).open("ab") as f:
            f.write(tail)
        with pytest.raises(RunError, match=f"ends at byte {end}, but {written} bytes were written"):
            opened(tmp_path / "copy")
    assert (tmp_path / "copy" / FIRST).stat().st_size == end + 7  # nothing was cut off
    shutil.copy(tmp_path / "served" / FIRST, tmp_path / "copy" / FIRST)
    assert opened(tmp_path / "copy").digests() == before


@pytest.mark.parametrize("remember", [1, 10_000])
def test_another_servers_log_is_not_gone_on_with(tmp_path, remember):
    """Its records end elsewhere, or at the same bytes with another chain."""
    for name, numbers in (("mine", (0, 1)), ("other", (1, 0)), ("longer", (0, 1, 2))):
        service = opened(tmp_path / name, remember=remember)
        service.act("freeze", [0]) if name == "longer" else None
        asked(service, *numbers)
        service.close()
    for name in ("other", "longer"):
        shutil.copy(tmp_path / name / FIRST, tmp_path / "mine" / FIRST)
        with pytest.raises(RunError, match=r"is not the log that|is damaged at byte"):
            opened(tmp_path / "mine", remember=remember)


@pytest.mark.parametrize("byte", [6, 7, 11])
def test_a_length_that_is_damaged_takes_no_later_records_with_it(tmp_path, byte):
    """It points beyond the end of the file, as a record does that was cut short; but the next one follows."""
    service = opened(tmp_path)
    asked(service, 0, 1, 2)
    service.log.close()
    path = tmp_path / FIRST
    whole = path.read_bytes()
    at = list(read(path))[1].position + byte
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1 :])
    for again in (opened, replay):
        with pytest.raises(RunError, match=f"is damaged at byte {at - byte}"):
            again(tmp_path)
    assert path.stat().st_size == len(whole)


def test_a_label_for_an_answer_of_before_counts_once(tmp_path):
    """A live folder that answered before it was served keeps its answers; a server forgets them with its first ids."""
    live = lives()[0]
    ids = live(stream(0, 3)).ids
    live.save(tmp_path / "live")
    service = opened(tmp_path / "served", [ac.load_live(tmp_path / "live")], remember=2)
    assert service.feedback(0, ids[:1], [1])["labels"] == 1
    asked(service, 0, 1, 2)
    service.close()
    again = opened(tmp_path / "served", [ac.load_live(tmp_path / "live")], remember=2)
    for name in ids:
        with pytest.raises(ValueError, match=f"{name} .* are not among the last"):
            again.feedback(0, [name], [1])
    assert again.host.shells[0].labelled[0] == 1
    assert again.feedback(0, ["0-11"], [1])["labels"] == 2
    with pytest.raises(ValueError, match="0-11"):
        again.feedback(0, ["0-11"], [1])


def test_an_id_that_is_used_again_is_the_newest(tmp_path):
    service = opened(tmp_path, remember=2)
    service.answer([Ask(0, "a", stream(0, 1)), Ask(1, "b", stream(1, 1))])
    asked(service, 0)
    service.answer([Ask(0, "a", stream(0, 9)[8:])])
    service.log.close()
    again = opened(tmp_path, remember=4)
    assert [name for _, name in again.ledger.known] == ["b", "r0", "a"]
    assert again._since() == again.ledger.known[1, "b"].position < again.ledger.known[0, "a"].position


def test_a_server_whose_folder_is_deleted_says_so_and_changes_nothing(tmp_path):
    """Another may be begun in its place; the first one would go on writing where nobody can read."""
    service = opened(tmp_path / "served")
    asked(service, 0)
    before = service.digests()
    shutil.rmtree(tmp_path / "served")
    for act in (lambda: asked(service, 1), lambda: service.act("freeze", [0]), service.checkpoint):
        with pytest.raises(RunError, match="was deleted while it was served; nothing has changed"):
            act()
    assert service.digests() == before and service.log.broken and not (tmp_path / "served").exists()
    other = opened(tmp_path / "served")
    assert service.close() == before
    asked(other, 1)
    assert replay(tmp_path / "served").digests == other.digests()


def test_a_step_whose_checkpoint_fails_is_not_done_again(tmp_path, monkeypatch, caplog):
    """Whatever the failure is: a step that seems to fail is asked again, each request alone."""

    async def go() -> int:
        service = opened(tmp_path, checkpoint_s=0.0)
        desk = Desk(service, Rules(), lambda *counted: None)
        monkeypatch.setattr(checkpoint, "save", no_memory)
        writer = asyncio.create_task(desk.run())
        found = await asyncio.gather(*(desk.ask(Ask(c, "", stream(c, 3))) for c in (0, 1)))
        desk.stop()
        await writer
        assert [answer.ids[0] for answer in found] == ["0-0", "1-0"]
        return sum(service.host.seen)

    def no_memory(*given):
        raise MemoryError

    assert asyncio.run(go()) == 6 and "no checkpoint: MemoryError" in caplog.text


def test_steps_that_give_other_bits_after_a_restart_are_told(tmp_path, monkeypatch, caplog):
    """As they may with another version of torch."""
    service = opened(tmp_path)
    asked(service, 0, 1)
    service.checkpoint()
    asked(service, 2, 3)
    service.log.close()
    opened(tmp_path).log.close()
    assert told(caplog) == []
    compute = Host.compute

    def rounded(self, calls):
        done = compute(self, calls)
        done.answers[:] = [replace(a, probabilities=a.probabilities.half().float()) for a in done.answers]
        return done

    monkeypatch.setattr(Host, "compute", rounded)
    opened(tmp_path)
    assert told(caplog) == ["2 steps"]


def told(caplog) -> list[str]:
    return [r.getMessage().partition(" since")[0] for r in caplog.records if r.name == "acclimate.serving"]


def test_a_log_whose_only_segment_is_empty_is_gone_on_with(tmp_path):
    """No request is remembered, so that all segments before the new one may go."""
    service = opened(tmp_path, segments=1)
    service.act("freeze", [0])
    service.rotate()
    before = service.close()
    assert [p.stat().st_size for p in (tmp_path / checkpoint.LOG).iterdir() if p.name.isdecimal()] == [0]
    again = opened(tmp_path, segments=1)
    assert again.digests() == before == replay(tmp_path).digests and again.host.shells[0].frozen
    asked(again, 0)
    after = again.digests()
    again.log.close()
    assert opened(tmp_path, segments=1).digests() == after
    assert replay(tmp_path).exact
