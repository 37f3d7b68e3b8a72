"""Machines cut into shards, for engines whose steps run in several places at once."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from annattn.mpc.delivery import check_lengths
from annattn.mpc.model import Mail
from annattn.mpc.order import stable_order
from annattn.mpc.parts.stages import join_mail

__all__ = ["cut_into_shards", "join_shards", "machines_of_shard"]


def cut_into_shards(mail: Mail, machines: int, shards: int) -> list[Mail]:
    """The mail for each of `shards` even stretches of the machines.

    >>> [part.dest.tolist() for part in cut_into_shards(Mail([0, 1, 3], [0, 0, 0], [[5], [6], [7]]), 4, shards=2)]
    [[0, 1], [3]]
    """
    shard = mail.dest * shards // machines
    order = stable_order(shard, shards)
    if order is not None:
        mail, shard = mail.take(order), shard[order]
    ends = np.searchsorted(shard, np.arange(shards + 1))
    return [Mail(mail.dest[start:end], mail.src[start:end], mail.words[start:end]) for start, end in pairwise(ends)]


def machines_of_shard(shard: int, machines: int, shards: int) -> range:
    """The machines of one shard, as `cut_into_shards` cuts them.

    >>> [machines_of_shard(shard, 5, shards=2) for shard in range(2)]
    [range(0, 3), range(3, 5)]
    """
    return range(-(-shard * machines // shards), -(-(shard + 1) * machines // shards))


def join_shards(round_: int, sent: Sequence[Mail]) -> Mail:
    """The mail that the shards sent, as one; refused if the shards' records have different lengths.

    >>> len(join_shards(0, [Mail([0], [1], [[5]]), Mail([2], [1], [[6]])]))
    2
    """
    check_lengths(round_, {part.width for part in sent if len(part)})
    return join_mail(*sent)
