"""Files that others made: why one cannot be read, and how deep JSON may be nested, in objects, lists and both."""

import json
from pathlib import Path

import pytest

from acclimate.ops.opening import DATA_LIMIT, DEPTH, TEXT_LIMIT, FileProblem, opened, parsed


@pytest.mark.parametrize(("name", "why"), [("a" * 300, "File name too long"), ("a\0b", "embedded null byte")])
def test_a_file_that_cannot_be_read_is_named_with_the_reason_alone(name, why):
    with pytest.raises(FileProblem) as e:
        opened(Path(name))
    assert str(e.value) == f"{name} cannot be read: {why}"


def test_a_file_may_be_as_large_as_the_limit_and_no_larger(tmp_path):
    assert (TEXT_LIMIT, DATA_LIMIT) == (512 * 2**20, 64 * 2**30)
    (tmp_path / "a").write_bytes(b"12345")
    with opened(tmp_path / "a", 5) as file:
        assert file.read() == b"12345"
    with pytest.raises(FileProblem, match="a has 5 bytes; at most 4 are read"):
        opened(tmp_path / "a", 4)


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_json_may_be_nested_so_deep_and_no_deeper(left, right):
    per = left.count("[") + left.count("{")
    fits = DEPTH // per - 1
    assert parsed(left * fits + "1" + right * fits, "it") == json.loads(left * fits + "1" + right * fits)
    with pytest.raises(FileProblem, match=f"it is damaged: its JSON is nested more than {DEPTH} deep"):
        parsed(left * (DEPTH + 2) + "1" + right * (DEPTH + 2), "it")
