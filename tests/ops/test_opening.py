"""JSON that others made: how deep it may be nested, in objects, lists and both."""

import json

import pytest

from acclimate.ops.opening import DEPTH, FileProblem, parsed


@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_json_may_be_nested_so_deep_and_no_deeper(left, right):
    per = left.count("[") + left.count("{")
    fits = DEPTH // per - 1
    assert parsed(left * fits + "1" + right * fits, "it") == json.loads(left * fits + "1" + right * fits)
    with pytest.raises(FileProblem, match=f"it is damaged: its JSON is nested more than {DEPTH} deep"):
        parsed(left * (DEPTH + 2) + "1" + right * (DEPTH + 2), "it")
