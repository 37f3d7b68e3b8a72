"""Machines cut into shards, for engines whose steps run in several places at once."""

from collections.abc import Sequence

import numpy as np

from annattn.mpc.delivery import check_lengths
from annattn.mpc.model import Mail
from annattn.mpc.parts.stages import join_mail

__all__ = ["cut_into_shards", "join_shards"]


def cut_into_shards(mail: Mail, machines: int, shards: int) -> list[Mail]:
    """The mail for each of `shards` even stretches of the machines.

    >>> [part.dest.tolist() for part in cut_into_shards(Mail([0, 1, 3], [0, 0, 0], [[5], [6], [7]]), 4, shards=2)]
    [[0, 1], [3]]
    """
    shard = mail.dest * shards // machines
    return [mail.take(np.asarray(shard == number)) for number in range(shards)]


def join_shards(round_: int, sent: Sequence[Mail]) -> Mail:
    """The mail that the shards sent, as one; refused if the shards' records have different lengths.

    >>> len(join_shards(0, [Mail([0], [1], [[5]]), Mail([2], [1], [[6]])]))
    2
    """
    check_lengths(round_, {part.width for part in sent if len(part)})
    return join_mail(*sent)
