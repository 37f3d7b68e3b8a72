"""The last layer, in which tokens read the output from the machines (the paper's Lemma "Final Output").

The lemma spends a layer on this, after one that delivers the messages of the last round. Here one layer does both: a
token asks for the mail of the machine that holds its output word, not for that of its own machine, and picks the word.
So a protocol of R rounds, each of which ends with a delivery, takes R + 1 layers.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from annattn.compiler.memory import MachineRows, to_limbs, to_words
from annattn.compiler.transformer import ElementWise, same
from annattn.mpc.model import Mail, Numbers, Protocol, Words, real_words

__all__ = ["Readers", "output_function", "output_rows", "output_words"]

TOKEN, PRESENT, WORDS = range(3)


@dataclass(frozen=True)
class Readers:
    """Which machine's mail a token reads: its own or, with `each` output words per machine, that of its output word."""

    machines: int
    each: int | None = None

    def machine(self, token: Numbers) -> Numbers:
        """The machine that each token reads; numbers from `machines` upwards mean none."""
        return token if self.each is None else token // self.each

    def first(self, token: Numbers) -> NDArray[np.bool_]:
        """Which tokens are the first to read their machine."""
        return np.ones(len(token), bool) if self.each is None else token % self.each == 0


def output_function(protocol: Protocol, rows: MachineRows, readers: Readers) -> ElementWise:
    """The transformer's ψ: the identity if tokens end with their machines' mail, else `output_rows`."""
    return same if readers.each is None else partial(output_rows, protocol, rows, readers)


def output_rows(protocol: Protocol, rows: MachineRows, readers: Readers, x: Tensor) -> Tensor:
    """From the mail that a token has read to its output: (token, 1, word), or (token, 0, …) if it has none.

    `gather`, applied to one machine's mail, gives that machine's outputs in order, as in the paper's Definition "MPC".
    """
    token, mail = rows.read(x)
    machine = readers.machine(token)
    lowest = {int(m): int(t) for m, t in zip(machine[::-1], token[::-1], strict=True)}
    outputs: dict[int, Words] = {}
    for number, reader in lowest.items():
        held = mail.take(mail.dest == reader)
        if len(held):
            outputs[number] = _as_words(protocol.gather(Mail(np.full(len(held), number), held.src, held.words)))
    width = max((words.shape[1] for words in outputs.values()), default=1)
    out = np.zeros((len(token), WORDS + rows.limbs * width))
    out[:, TOKEN] = token
    for at, (t, m) in enumerate(zip(token.tolist(), machine.tolist(), strict=True)):
        place = t % (readers.each or 1)
        if m in outputs and place < len(outputs[m]):
            out[at, PRESENT] = 1
            out[at, WORDS:] = to_limbs(outputs[m][place], rows.limbs)
    return torch.from_numpy(out)


def output_words(rows: MachineRows, tokens: Tensor) -> Words:
    """The output words of all tokens that have one, in order."""
    block = tokens.numpy()
    words = to_words(block[block[:, PRESENT] > 0, WORDS:], rows.limbs)
    return words[:, 0] if words.shape[1] == 1 else words


def _as_words(output: Any) -> Words:
    given = np.asarray(output)
    words = real_words(given) if given.dtype.kind == "f" else given.astype(np.uint64)
    return words.reshape(len(words), -1) if words.ndim else words.reshape(1, 1)
