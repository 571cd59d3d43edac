"""Names of contents: what they are made of, and how long they are."""

import hashlib

import torch

from acclimate.ops.hashing import content_hash


def test_a_name_is_half_of_a_digest_of_the_shape_the_type_and_the_bytes():
    x = torch.arange(6, dtype=torch.int16).reshape(2, 3)
    whole = hashlib.sha256(b"(2, 3)torch.int16" + x.numpy().tobytes() + b"'a'").hexdigest()
    assert content_hash(x, "a") == whole[:32]
    assert len({content_hash(x), content_hash(x.T), content_hash(x.reshape(3, 2)), content_hash(x.float())}) == 4
