"""What compiling a protocol gives: a transformer that knows how to embed the input and read the output."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from annattn.compiler.init import embed, token_width
from annattn.compiler.memory import MachineRows
from annattn.compiler.out import Readers, output_words
from annattn.compiler.sizes import ValueWidths
from annattn.compiler.transformer import Transformer
from annattn.mpc.delivery import deliver_input
from annattn.mpc.model import Protocol, check_input

__all__ = ["CompiledProtocol"]


@dataclass(frozen=True, kw_only=True)
class CompiledProtocol(Transformer):
    """A transformer that computes what a protocol computes; `run(words)` embeds the input and reads the output."""

    protocol: Protocol
    rows: MachineRows
    widths: ValueWidths
    readers: Readers
    record_words: int
    """Words per record of the input as the protocol places it, seen in the trial run."""

    @property
    def dim(self) -> int:
        """Columns of an input token."""
        return token_width(self.rows, self.record_words)

    def embed(self, words: ArrayLike) -> Tensor:
        """The input tokens: one per record, where the protocol places it, and blank ones for the other machines."""
        tokens = self.rows.limits.machines * (self.readers.each or 1)
        return embed(self.rows, deliver_input(self.protocol, check_input(self.protocol, words)), tokens)

    def read(self, tokens: Tensor) -> Any:
        """The protocol's output, from what the tokens hold after the last layer."""
        if self.readers.each is not None:
            return output_words(self.rows, tokens)
        return self.protocol.gather(self.rows.read(tokens)[1])

    def run(self, words: ArrayLike) -> Any:
        """The protocol's output, computed by the transformer."""
        return self.read(self(self.embed(words)))
