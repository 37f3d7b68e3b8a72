"""The first layer, which moves the input into the machines (the paper's Lemma "Initialization")."""

import numpy as np
import torch
from torch import Tensor

from annattn.compiler.identifiers import Identifiers
from annattn.compiler.mechanisms import Attention
from annattn.compiler.memory import MachineRows, to_limbs, to_words
from annattn.compiler.transformer import Head, Layer
from annattn.errors import CollisionError
from annattn.mpc.model import Mail, Numbers, Words
from annattn.mpc.parts.stages import index_within

__all__ = ["embed", "init_layer", "init_width", "token_width"]

TOKEN, HOME, PLACE, SOURCE, WORDS = range(5)
ABSENT = -1.0


def init_width(rows: MachineRows) -> int:
    """Columns of a value: s·(2 + limbs), with room for s records of one word; the lemma has 2s.

    A record is (1, its source, its words). The lemma writes the record's number instead of the 1. The machine knows
    that number from the column; the 1 tells it how many records were averaged.
    """
    return rows.limits.memory_words * (2 + rows.limbs)


def token_width(rows: MachineRows, record_words: int) -> int:
    """Columns of an input token: token, home, place, source and the words of a record."""
    return WORDS + rows.limbs * record_words


def embed(rows: MachineRows, mail: Mail, tokens: int) -> Tensor:
    """One token (token, home, place there, source, words) per record of delivered input, and blank ones up to `tokens`.

    The home of a record and its place there are the positional encoding: they say where the protocol places its input.
    """
    count = max(len(mail), tokens)
    block = np.zeros((count, token_width(rows, mail.width)))
    block[:, TOKEN] = np.arange(count)
    block[len(mail) :, HOME] = ABSENT
    block[: len(mail), HOME] = mail.dest
    block[: len(mail), PLACE] = index_within(mail.dest)
    block[: len(mail), SOURCE] = mail.src
    block[: len(mail), WORDS:] = to_limbs(mail.words, rows.limbs)
    return torch.from_numpy(block)


def init_layer(rows: MachineRows, names: Identifiers, attention: Attention) -> Layer:
    """One head: a token's key is the name of its home, and its value holds its record where the home looks for it."""

    def query(x: Tensor) -> Tensor:
        token = x[:, TOKEN].numpy().astype(np.int64)
        return names(np.where(token < names.machines, token, names.deaf))

    def key(x: Tensor) -> Tensor:
        home = x[:, HOME].numpy().astype(np.int64)
        return names(np.where(home == ABSENT, names.silent, home))

    def value(x: Tensor) -> Tensor:
        block = x.numpy()
        present = np.flatnonzero(block[:, HOME] != ABSENT)
        place = block[present, PLACE].astype(np.int64)
        record = block.shape[1] - WORDS + 2
        packet = np.column_stack([np.ones(len(present)), block[present, SOURCE:]])
        out = np.zeros((len(block), record * (int(place.max(initial=-1)) + 1)))
        out[present[:, None], record * place[:, None] + np.arange(record)] = packet
        return torch.from_numpy(out)

    def takes_part(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, TOKEN] < names.machines, x[:, HOME] != ABSENT

    def update(x: Tensor, reads: list[Tensor]) -> Tensor:
        record = x.shape[1] - WORDS + 2
        reader, source, words = _records(reads[0].numpy(), record, rows.limbs)
        token = x[:, TOKEN].numpy().astype(np.int64)
        return rows.write(token, token[reader], source, words)

    head = Head(query, key, value, names.width, init_width(rows), nonzeros=rows.limits.memory_words * (2 + rows.limbs),
                takes_part=takes_part)  # fmt: skip
    return Layer([head], attention, update=update, width=rows.width)


def _records(mean: np.ndarray, record: int, limbs: int) -> tuple[Numbers, Numbers, Words]:
    block = mean[:, : mean.shape[1] // record * record].reshape(len(mean), -1, record)
    reader, place = np.nonzero(block[:, :, 0])
    found = block[reader, place]
    exact = found[:, 1:] / found[:, :1]
    whole = np.rint(exact)
    off = np.abs(exact - whole).max(axis=1, initial=0) > 0.25
    if off.any():
        token = int(reader[np.argmax(off)])
        raise CollisionError(layer=0, head=0, token=token, detail="an average of other than whole records")
    return reader, whole[:, 0].astype(np.int64), to_words(whole[:, 1:], limbs)
