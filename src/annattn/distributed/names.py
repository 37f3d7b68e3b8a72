"""Numbers for tuples too wide for one code, the same on every rank and exact.

Each tuple has an owner, by a fingerprint of it. Owners number the tuples they are sent, and say which number is whose.
"""

import torch
from torch import Tensor

from annattn.distributed.peers import Peers
from annattn.distributed.wire import pack, unpack

__all__ = ["name_tuples", "owner_of"]

_MIX = (-7046029254386353131, -4658895280553007687)  # odd, as in splitmix64


def owner_of(codes: Tensor, ranks: int) -> Tensor:
    """The rank that owns each code: by a hash of it, since codes that occur are seldom spread evenly.

    >>> owner_of(torch.arange(6), 1).tolist()
    [0, 0, 0, 0, 0, 0]
    """
    mixed = codes * _MIX[0]
    mixed = (mixed ^ (mixed >> 29)) * _MIX[1]
    return ((mixed >> 33) & 0x3FFFFFFF) % ranks


def name_tuples(peers: Peers, tuples: Tensor, doing: str) -> tuple[Tensor, int]:
    """Numbers of tuples (n, width), equal on all ranks exactly where the tuples are, and a bound on them."""
    width = tuples.shape[1]
    distinct, place = torch.unique(tuples, dim=0, return_inverse=True) if len(tuples) else (tuples, tuples[:, 0])
    fingerprint = torch.zeros(len(distinct), dtype=torch.int64, device=tuples.device)
    for column in distinct.unbind(1):
        fingerprint = (fingerprint ^ column) * _MIX[0]
        fingerprint = fingerprint ^ (fingerprint >> 31)
    owner = owner_of(fingerprint, peers.size)
    mine = [(owner == s).nonzero()[:, 0] for s in range(peers.size)]
    counts = peers.gather(torch.tensor([len(at) for at in mine], device=tuples.device), doing).cpu()
    predicted = 8 * int(
        width * (counts[peers.rank].sum() - counts[peers.rank, peers.rank])
        + counts[:, peers.rank].sum()
        - counts[peers.rank, peers.rank]
    )
    with peers.predicting(doing, "members", predicted):
        asked = counts[:, peers.rank].tolist()
        found = peers.exchange([pack([distinct[at]]) for at in mine], [8 * width * n for n in asked], doing)
        wanted = torch.cat([unpack(raw, n, [(width, torch.int64)])[0] for raw, n in zip(found, asked, strict=True)])
        number = torch.zeros(len(wanted), dtype=torch.int64, device=tuples.device)
        if len(wanted):
            number = torch.unique(wanted, dim=0, return_inverse=True)[1]
        answers = [pack([part[:, None]]) for part in (number * peers.size + peers.rank).split(asked)]
        replies = peers.exchange(answers, [8 * len(at) for at in mine], doing)
    names = torch.zeros(len(distinct), dtype=torch.int64, device=tuples.device)
    for at, raw in zip(mine, replies, strict=True):
        names[at] = unpack(raw, len(at), [(1, torch.int64)])[0][:, 0]
    most = peers.gather(names.max()[None] if len(names) else names.new_full((1,), -1), doing)
    return names[place] if len(tuples) else names, int(most.max()) + 1
