"""Testing that what a machine sends depends on its own mail alone."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from annattn.errors import ShardingError
from annattn.mpc.delivery import check_received, check_sent, deliver, deliver_input, step
from annattn.mpc.model import Mail, Numbers, Protocol, check_input

__all__ = ["check_sharding"]


def check_sharding(protocol: Protocol, words: ArrayLike, *, cuts: int = 3, alone: int = 256, seed: int = 0) -> None:
    """Run a protocol and raise unless every round's mail is the same however the machines are cut into shards.

    There are three kinds of cuts. Up to `alone` machines are tried alone. For each bit of the machine numbers there is
    a cut into those with that bit and those without, so any two machines are apart in one of them. And there are `cuts`
    random cuts. The check also finds a step that depends on anything but its arguments, if two calls happen to differ.

    >>> from annattn.mpc.protocols import Sum
    >>> check_sharding(Sum(n=5, memory_words=2), [1, 2, 3, 4, 5])
    """
    limits = protocol.limits
    rng = np.random.default_rng(seed)
    mail = deliver_input(protocol, check_input(protocol, words))
    for round_ in range(protocol.rounds):
        whole = step(protocol, round_, mail.copy())
        check_sent(round_, whole, limits, None)
        check_received(round_, whole, limits)
        for shard_of in _cuts(np.unique(mail.dest), cuts, alone, rng):
            _compare(protocol, round_, mail, whole, shard_of)
        mail = deliver(whole, limits.machines)


def _cuts(machines: Numbers, cuts: int, alone: int, rng: np.random.Generator) -> Iterator[dict[int, Numbers]]:
    yield dict(enumerate(machines[rng.permutation(len(machines))[:alone], None]))
    for bit in range(int(machines.max(initial=0)).bit_length()):
        yield {side: machines[machines >> bit & 1 == side] for side in (0, 1)}
    for _ in range(cuts):
        shard = rng.integers(0, rng.integers(2, 6), len(machines))
        yield {int(i): machines[shard == i] for i in np.unique(shard)}


def _compare(protocol: Protocol, round_: int, mail: Mail, whole: Mail, shards: dict[int, Numbers]) -> None:
    for machines in shards.values():
        inside = np.isin(mail.dest, machines)
        if not inside.any():
            continue
        part = step(protocol, round_, mail.take(inside))
        foreign = ~np.isin(part.src, machines)
        if foreign.any():
            machine = int(part.src[foreign][0])
            raise ShardingError(round=round_, machine=machine, detail="it sent mail from a shard it was not in")
        expected = _by_sender(whole.take(np.isin(whole.src, machines)))
        part = _by_sender(part)
        if part.width != expected.width and len(part) + len(expected):
            detail = f"records of {part.width} words in its shard, {expected.width} with all machines"
            raise ShardingError(round=round_, machine=int(machines[0]), detail=detail)
        machine = _first_difference(part, expected)
        if machine is not None:
            raise ShardingError(round=round_, machine=machine, detail="its mail changed when the machines were cut")


def _first_difference(part: Mail, expected: Mail) -> int | None:
    length = min(len(part), len(expected))
    same = (part.src[:length] == expected.src[:length]) & (part.dest[:length] == expected.dest[:length])
    same &= (part.words[:length] == expected.words[:length]).all(axis=1)
    if not same.all():
        return int(expected.src[np.argmin(same)])
    longer = part if len(part) > length else expected
    return int(longer.src[length]) if len(longer) > length else None


def _by_sender(mail: Mail) -> Mail:
    # Of the order of records, a receiver sees only that among one sender's.
    return mail.take(np.lexsort([mail.dest, mail.src]))
