"""Text as bytes of fixed length: where it is cut, and what its ids are."""

import numpy as np

from acclimate.ops.text import cut, decode, encode


def test_a_text_is_cut_before_a_character_that_does_not_fit():
    assert cut("abc", 3) == cut("abc", 4) == b"abc" and cut("abc", 2) == b"ab"
    assert cut("aé", 3) == "aé".encode() and cut("aé", 2) == b"a", "é has two bytes"


def test_ids_are_bytes_plus_one_and_zero_where_a_text_is_over():
    ids = encode(["ab", "", "abcd"], 3)
    assert ids.tolist() == [[98, 99, 0], [0, 0, 0], [98, 99, 100]] and ids.dtype == np.int16
    assert decode(ids) == ["ab", "", "abc"]
