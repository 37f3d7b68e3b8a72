"""Ranks make sure that they were called alike before anything else is exchanged."""

import hashlib
import json

import torch
from torch import Tensor

from annattn.distributed.peers import Peers
from annattn.errors import InputError, RankError
from annattn.lsh import Hasher

__all__ = ["agree", "describe_hasher", "describe_tensor"]

_FAILED = "raised"


def describe_tensor(x: Tensor) -> str:
    """All of a tensor's shape but its length, which ranks may differ in, and its dtype and kind of device."""
    return f"batch {x.shape[0]}, heads {x.shape[1]}, dim {x.shape[3]}, {x.dtype}, {x.device.type}"


def describe_hasher(hasher: Hasher) -> dict[str, str]:
    """What a hasher was made of, and a fingerprint of the functions drawn."""
    drawn = hashlib.sha256()
    for parameter in hasher.parameters:
        drawn.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return {
        "hash family": str(hasher.family),
        "tables": str(hasher.tables),
        "hashes": str(hasher.hashes),
        "seed of the hasher": str(hasher.seed),
        "heads of the hasher": str(hasher.heads),
        "hash functions drawn": drawn.hexdigest()[:16],
    }


def agree(peers: Peers, calling: str, described: dict[str, str], error: Exception | None) -> None:
    """Raise unless every rank calls the same with the same description; or the error this rank already has.

    All ranks learn of it together, so none of them waits for one that has left.
    """
    peers = peers.straight  # errors name ranks as torch does
    said = {_FAILED: f"{type(error).__name__}: {error}"} if error is not None else {"call": calling, **described}
    text = json.dumps(said).encode()
    digest = hashlib.sha256(text).digest()
    header = torch.frombuffer(bytearray(digest + len(text).to_bytes(8, "little")), dtype=torch.uint8).to(peers.device)
    doing = f"the agreement on {calling}"
    headers = peers.gather(header, doing).cpu()
    if bool((headers[:, :32] == headers[0, :32]).all()) and error is None:
        return
    lengths = [int.from_bytes(bytes(row[32:].tolist()), "little") for row in headers]
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    texts = peers.gather(padded.to(peers.device), doing).cpu()
    everyone = [json.loads(bytes(row[:n].tolist())) for row, n in zip(texts, lengths, strict=True)]
    if error is not None:
        raise error
    for rank, one in enumerate(everyone):
        if _FAILED in one:
            raise RankError(
                f"rank {rank} of {peers.size} raised {one[_FAILED]} before anything was exchanged; mend the call there"
            )
    raise InputError(
        "ranks",
        given="; ".join(_differences(everyone)),
        expected="the same on every rank",
        hint="nothing was exchanged; every rank has to make the same calls in the same order",
    )


def _differences(everyone: list[dict[str, str]]) -> list[str]:
    """Per entry that differs, which ranks say what."""
    found = []
    for name in dict.fromkeys(name for one in everyone for name in one):
        said: dict[str, list[int]] = {}
        for rank, one in enumerate(everyone):
            said.setdefault(one.get(name, "nothing"), []).append(rank)
        if len(said) > 1:
            what = ", ".join(f"{value} on rank {', '.join(map(str, ranks))}" for value, ranks in said.items())
            found.append(f"{name} {what}")
    return found
