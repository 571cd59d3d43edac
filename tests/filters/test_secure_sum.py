"""Secure sums that survive drop-outs and garbage: the sum of the survivors, exactly, and nothing besides."""

import hashlib
import json
import random
import struct

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from acclimate.filters import secure_sum, shamir
from acclimate.filters.secure_sum import (
    CHECK,
    MARK,
    MODULUS,
    SEALED,
    Client,
    Keys,
    Opened,
    Unreadable,
    correction,
    liars,
    needed,
    valid,
)

WORDS = 40


def test_a_secret_follows_from_enough_shares_and_from_no_fewer():
    secret = shamir.private_key()
    shares = shamir.split(secret, [0, 3, 4, 9, 11], 3)
    for chosen in ((0, 3, 4), (3, 9, 11), (0, 4, 11)):
        assert shamir.joined({c: shares[c] for c in chosen}) == secret
    assert shamir.joined({c: shares[c] for c in (0, 3)}) != secret
    assert shamir.joined({**{c: shares[c] for c in (0, 3)}, 4: 7}) != secret


def prime(n):
    """Miller and Rabin's test."""
    d, s = n - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    return all(
        any(x in (1, n - 1) if i == 0 else x == n - 1 for i, x in enumerate(pow(a, d * 2**k, n) for k in range(s)))
        for a in [random.Random(i).getrandbits(64) + 2 for i in range(2)]
    )


def test_the_group_is_the_safe_prime_of_rfc_3526():
    p = shamir.group()
    assert f"{p:x}".startswith("ffffffffffffffffc90fdaa22168c234") and f"{p:x}".endswith(
        "15728e5a8aacaa68ffffffffffffffff"
    )
    assert prime(p) and prime((p - 1) // 2)
    a, b = shamir.private_key(), shamir.private_key()
    assert shamir.agreed(a, shamir.public_key(b), "x") == shamir.agreed(b, shamir.public_key(a), "x")
    with pytest.raises(ValueError, match="none of the group"):
        shamir.agreed(a, 1, "x")


def test_every_private_key_has_all_its_bits_and_they_differ():
    keys = {shamir.private_key() for _ in range(50)}
    assert len(keys) == 50 and {key.bit_length() for key in keys} == {shamir.BITS}


def values(clients):
    g = torch.Generator().manual_seed(4)
    return {c: torch.randint(0, MODULUS, (WORDS,), generator=g) for c in clients}


def conducted(
    numbers, threshold, *, no_shares=(), no_numbers=(), garbage=None, silent=(), wrong=(), quiet=(), tamper=(), named=()
):
    """A whole sum in one process, in which clients leave or misbehave at the step that is named.

    `tamper` are pairs: what the first seals for the second is zeros. `quiet` are pairs too: the first does not open the
    second's share. `named` are those whom the server must find to have opened wrong shares.
    """
    clients = {c: Client(c) for c in numbers}
    published = {c: client.keys() for c, client in clients.items()}
    sent = {c: client.shares(published, threshold) for c, client in clients.items() if c not in no_shares}
    keys = {c: published[c] for c in sent}
    arrived = {}
    for c in sent:
        boxes = {o: s.shares[c] for o, s in sent.items() if o != c}
        boxes = {o: bytes(len(b)) if (o, c) in tamper else b for o, b in boxes.items()}
        client = Client.loaded(json.loads(json.dumps(clients[c].saved())))  # as where every step is another process
        marks = {o: s.marks[c] for o, s in sent.items()}
        message = (numbers[c] + client.mask(WORDS, list(sent), boxes, marks)) % MODULUS
        clients[c] = client
        if c not in no_numbers:
            arrived[c] = message if c not in (garbage or {}) else garbage[c]
    fine = {c: m for c, m in arrived.items() if isinstance(m, torch.Tensor) and m.shape == (WORDS,)}
    opened = {c: clients[c].opened(fine) for c in fine if c not in silent}
    for c in wrong:
        opened[c] = Opened(dict.fromkeys(opened[c].seeds, 5), dict.fromkeys(opened[c].keys, 5))
    for c, other in quiet:
        opened[c] = Opened(*({o: v for o, v in part.items() if o != other} for part in opened[c]))
    assert liars(opened, sent) == sorted(named)
    total = torch.stack(list(fine.values())).sum(0) + correction(WORDS, fine, keys, sent, opened, threshold)
    return total % MODULUS, fine


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ({}, range(5)),
        ({"no_shares": (2,)}, (0, 1, 3, 4)),
        ({"no_numbers": (0, 3)}, (1, 2, 4)),
        ({"garbage": {1: torch.zeros(3), 4: "text"}}, (0, 2, 3)),
        ({"silent": (0, 1)}, range(5)),
        ({"no_numbers": (2,), "wrong": (1,), "named": (1,)}, (0, 1, 3, 4)),
        ({"wrong": (0, 3), "named": (0, 3)}, range(5)),
        ({"quiet": ((0, 1), (2, 1))}, range(5)),
        ({"no_numbers": (2,), "tamper": ((2, 1),)}, (0, 1, 3, 4)),
        ({"tamper": ((0, 1), (3, 4))}, range(5)),
    ],
    ids=[
        "all",
        "before shares",
        "after shares",
        "garbage",
        "silent at the end",
        "liar",
        "two liars",
        "two who keep quiet",
        "a share of the lost",
        "shares",
    ],
)
def test_the_sum_is_that_of_the_survivors_to_the_bit(gone, left):
    numbers = values(range(5))
    total, fine = conducted(numbers, 3, **gone)
    assert sorted(fine) == list(left)
    assert torch.equal(total, sum(numbers[c] for c in left) % MODULUS)


def test_a_message_is_noise_and_masks_are_not_taken_off_by_too_few():
    numbers = {c: torch.zeros(WORDS, dtype=torch.int64) for c in range(5)}
    clients = {c: Client(c) for c in numbers}
    keys = {c: client.keys() for c, client in clients.items()}
    sent = {c: client.shares(keys, 3) for c, client in clients.items()}
    boxes = {c: {o: s.shares[c] for o, s in sent.items() if o != c} for c in clients}
    marks = {c: {o: s.marks[c] for o, s in sent.items()} for c in clients}
    arrived = {c: numbers[c] + clients[c].mask(WORDS, range(5), boxes[c], marks[c]) for c in clients}
    words = torch.stack(list(arrived.values())).double()
    assert float(words.std() / 2**32) == pytest.approx(12**-0.5, rel=0.1) and not (words == 0).any()
    with pytest.raises(ValueError, match="survivors cannot be opened"):
        clients[0].opened([1, 2])
    first = clients[0].opened([0, 1, 2])
    assert set(first.seeds) == {0, 1, 2} and set(first.keys) == {3, 4}  # never both of one client
    with pytest.raises(ValueError, match="or others were before"):
        clients[0].opened([0, 1, 2, 3])
    with pytest.raises(ArithmeticError, match="1 clients opened their shares; 3 are needed"):
        correction(WORDS, arrived, keys, sent, {0: first}, 3)


def test_fewer_than_a_majority_may_not_open():
    keys = {c: Client(c).keys() for c in range(3)}
    with pytest.raises(ValueError, match="threshold=2 must be above half of the 4"):
        Client(3).shares({**keys, 3: keys[0]}, 2)
    with pytest.raises(ValueError, match="these are not its keys"):
        Client(3).shares({**keys, 3: keys[0]}, 3)


def test_nothing_is_given_twice():
    clients = {c: Client(c) for c in range(3)}
    keys = {c: client.keys() for c, client in clients.items()}
    sent = {c: client.shares(keys, 2) for c, client in clients.items()}
    with pytest.raises(ValueError, match="it has sent shares before"):
        clients[0].shares(keys, 3)
    boxes = {o: s.shares[0] for o, s in sent.items() if o}, {o: s.marks[0] for o, s in sent.items() if o}
    with pytest.raises(ValueError, match="3 members, 1 unknown"):
        clients[0].mask(WORDS, [0, 1, 9], *boxes)
    with pytest.raises(ValueError, match="1 members, 0 unknown"):
        clients[0].mask(WORDS, [0], *boxes)
    clients[0].mask(WORDS, [0, 1, 2], *boxes)
    with pytest.raises(ValueError, match="it has masked before"):
        Client.loaded(clients[0].saved()).mask(WORDS, [0, 1], *boxes)
    first = clients[0].opened([0, 1])
    again = Client.loaded(clients[0].saved())
    assert again.opened([1, 0]) == first, "an answer that was lost"
    with pytest.raises(ValueError, match="or others were before"):
        again.opened([0, 1, 2])


def test_shares_that_give_no_secret_name_the_client_whose_they_are():
    """Client 2 seals wrong shares for everybody, and drops out."""
    numbers = values(range(4))
    with pytest.raises(Unreadable, match="the key of client 2 does not follow from the 0 shares") as e:
        conducted(numbers, 3, no_numbers=(2,), tamper=tuple((2, c) for c in range(4)))
    assert e.value.client == 2


@pytest.mark.parametrize(
    ("odd", "blamed"),
    [
        ({"wrong": (1,), "named": (1,)}, None),
        ({"quiet": ((1, 0),)}, None),
        ({"quiet": ((1, 0), (2, 0))}, 0),
        ({"tamper": ((0, 1), (0, 2))}, 0),
    ],
    ids=["opens wrong shares", "keeps one share back", "most have none", "seals wrong shares"],
)
def test_who_is_blamed_where_all_shares_are_needed(odd, blamed):
    """One who opens wrong shares, or none, cannot let the client be blamed whose secret is missing then."""
    with pytest.raises(Unreadable, match="the mask of client 0 does not follow from the [12] shares") as e:
        conducted(values(range(3)), 3, **odd)
    assert e.value.client == blamed


def test_a_client_that_deals_shares_of_another_secret_is_blamed(monkeypatch):
    """The shares are those whose hashes it published, all of them are opened, and they give another seed."""
    cheat, honest, dealt = Client(0), shamir.split, []

    def split(secret, holders, threshold):
        dealt.append(honest(secret + 1, holders, threshold))
        return dealt[-1]

    monkeypatch.setattr(shamir, "split", split)
    sent = cheat.shares({1: Client(1).keys(), 2: Client(2).keys(), 0: cheat.keys()}, 2)
    given = {c: Opened({0: v}, {}) for c, v in dealt[0].items()}
    with pytest.raises(Unreadable, match="the mask of client 0 does not follow from the 3 shares") as e:
        correction(WORDS, [0], {0: cheat.keys()}, {0: sent}, given, 2)
    assert e.value.client == 0 and liars(given, {0: sent}) == []


def test_a_share_that_is_not_the_published_one_is_not_held():
    """Whoever seals another share than it says cannot let the receiver be taken for a liar at the end."""
    clients = {c: Client(c) for c in range(3)}
    keys = {c: client.keys() for c, client in clients.items()}
    sent = {c: client.shares(keys, 2) for c, client in clients.items()}
    marks = {1: sent[1].marks[2], 2: sent[2].marks[0]}
    clients[0].mask(WORDS, range(3), {o: sent[o].shares[0] for o in (1, 2)}, marks)
    opened = clients[0].opened([0, 1, 2])
    assert set(opened.seeds) == {0, 2} and liars({0: opened}, sent) == []


def test_a_liar_about_keys_alone_is_named():
    clients = {c: Client(c) for c in range(3)}
    keys = {c: client.keys() for c, client in clients.items()}
    sent = {c: client.shares(keys, 2) for c, client in clients.items()}
    boxes, marks = {o: sent[o].shares[0] for o in (1, 2)}, {o: s.marks[0] for o, s in sent.items()}
    clients[0].mask(WORDS, range(3), boxes, marks)
    opened = clients[0].opened([0, 1])
    assert liars({0: opened}, sent) == []
    assert liars({0: Opened(opened.seeds, {2: opened.keys[2] + 1})}, sent) == [0]


def test_a_secret_that_is_too_long_is_its_owners_fault():
    """The seed has one bit more than secrets may have, all else of it is right."""
    cheat = Client(0)
    cheat._seed = 1 << shamir.BITS
    others = {c: Client(c) for c in (1, 2)}
    keys = {0: cheat.keys()} | {c: client.keys() for c, client in others.items()}
    sent = {0: cheat.shares(keys, 2)} | {c: client.shares(keys, 2) for c, client in others.items()}
    for c, client in others.items():
        client.mask(
            WORDS,
            range(3),
            {o: s.shares[c] for o, s in sent.items() if o != c},
            {o: s.marks[c] for o, s in sent.items()},
        )
    opened = {c: client.opened(range(3)) for c, client in others.items()}
    with pytest.raises(Unreadable, match="the mask of client 0") as e:
        correction(WORDS, [0], keys, sent, opened, 2)
    assert e.value.client == 0


@pytest.mark.parametrize("longer", [False, True])
def test_a_box_is_opened_where_its_tag_and_its_length_are_right(longer):
    """A sender knows the pair's key, and could seal anything; others can only change what they see."""
    key, shares = bytes(range(32)), (7, 1 << 200)
    box = secure_sum._sealed(key, 1, 2, *shares)
    assert secure_sum._unsealed(key, 1, 2, box) == shares
    if longer:
        assert secure_sum._unsealed(key, 1, 2, secure_sum._sealed(key, 1, 2, *shares, 5)) is None
    else:
        assert secure_sum._unsealed(key, 1, 2, bytes([box[0] ^ 1]) + box[1:]) is None
        assert secure_sum._unsealed(key, 2, 1, box) is None


def test_who_has_given_no_shares_opens_nothing():
    with pytest.raises(ValueError, match="0 survivors cannot be opened"):
        Client(0).opened([])


def keystream(key, words):
    """RFC 8439's ChaCha20 from another library: counter and nonce of zero."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(4 * words))
    return torch.tensor(struct.unpack(f"<{words}I", stream))


def test_what_is_on_the_wire_is_fixed():
    """Clients of two versions must agree on every byte: sizes, and a mask worked out with another ChaCha20.

    The lower number of a pair adds their common mask, the other takes it off.
    """
    clients = {c: Client(c) for c in (3, 5)}
    keys = {c: client.keys() for c, client in clients.items()}
    sent = {c: client.shares(keys, 2) for c, client in clients.items()}
    assert (CHECK, MARK, SEALED) == (32, 64, 164)
    assert [len(sent[3].check), len(sent[3].marks[5]), len(sent[3].shares[5])] == [CHECK, MARK, SEALED]
    common = shamir.agreed(clients[3]._mask, keys[5].mask, "mask")
    for c, sign in ((3, 1), (5, -1)):
        other = 8 - c
        got = clients[c].mask(WORDS, keys, {other: sent[other].shares[c]}, {o: s.marks[c] for o, s in sent.items()})
        own = hashlib.sha256(b"acclimate\0own mask\0" + clients[c]._seed.to_bytes(66, "big")).digest()
        assert torch.equal(got, (keystream(own, WORDS) + sign * keystream(common, WORDS)) % MODULUS)


def test_no_share_is_the_secret_itself():
    secret = shamir.private_key()
    for name in (-1, shamir.FIELD - 1, -(10**9)):
        with pytest.raises(ValueError, match="numbers from 0 on"):
            shamir.split(secret, [0, 1, name], 2)


def test_a_share_of_the_clients_is_more_than_half_of_them():
    assert [needed(0.75, n) for n in (2, 3, 4, 5, 8)] == [2, 3, 3, 4, 6]
    assert [needed(0.51, n) for n in (2, 3, 4, 5, 100)] == [2, 2, 3, 3, 51]
    assert [needed(0.1, n) for n in (2, 3, 10)] == [2, 2, 6]
    p = shamir.group()
    assert valid(Keys(2, p - 2)) and not any(valid(Keys(2, k)) for k in (0, 1, p - 1, p, p + 5))
