"""From a protocol to a transformer: the paper's Theorem "ANNA simulates MPC", basic and improved."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from numpy.typing import ArrayLike
from torch import Tensor

from annattn.compiler.admission import admit
from annattn.compiler.identifiers import Identifiers, separating_hasher
from annattn.compiler.init import embed, init_layer, init_width, token_width
from annattn.compiler.mechanisms import Anna, Attention, ExactMatch
from annattn.compiler.memory import MachineRows
from annattn.compiler.out import Readers, output_rows, output_words
from annattn.compiler.route import Route, packet_width
from annattn.compiler.sparse_code import SparseCode, enough_slots, lemma_slots, practical_slots
from annattn.compiler.transformer import Transformer, same
from annattn.errors import CompileError, InputError
from annattn.mpc import with_partners
from annattn.mpc.delivery import deliver_input
from annattn.mpc.model import Limits, Protocol, check_input

__all__ = ["CompiledProtocol", "ValueWidths", "senders_per_head", "to_transformer", "value_widths"]

MOST_MACHINES = 2**20


@dataclass(frozen=True)
class ValueWidths:
    """The width of the values that carry messages: as built, as the lemma has it (α⁴Δ log q), and α²Δ log q."""

    built: int
    lemma: int
    square: int


@dataclass(frozen=True, kw_only=True)
class CompiledProtocol(Transformer):
    """A transformer that computes what a protocol does; `run(words)` embeds the input and reads the output."""

    protocol: Protocol
    rows: MachineRows
    widths: ValueWidths
    readers: Readers

    @property
    def dim(self) -> int:
        """Columns of an input token."""
        return token_width(self.rows, self.protocol.input_width or 1)

    def embed(self, words: ArrayLike) -> Tensor:
        """The input tokens, one a record as the protocol lays its input out, and blank ones for further machines."""
        tokens = self.rows.limits.machines * (self.readers.each or 1)
        return embed(self.rows, deliver_input(self.protocol, check_input(self.protocol, words)), tokens)

    def read(self, tokens: Tensor) -> Any:
        """The protocol's output from what the tokens hold after the last layer."""
        if self.readers.each is not None:
            return output_words(self.rows, tokens)
        return self.protocol.gather(self.rows.read(tokens)[1])

    def run(self, words: ArrayLike) -> Any:
        """The protocol's output, computed by the transformer."""
        return self.read(self(self.embed(words)))


def to_transformer(
    protocol: Protocol,
    attention: Literal["ema", "anna"] = "ema",
    partners: int | None = None,
    mode: Literal["theorem", "practical"] = "practical",
    *,
    outputs_each: int | None = None,
    example: ArrayLike | None = None,
    slots: int | None = None,
    seed: int = 0,
    memory_bytes: int = 8 * 2**30,
) -> CompiledProtocol:
    """A transformer of R + 1 layers that computes what the protocol computes (Theorem "ANNA simulates MPC").

    With q machines of s words of `limbs` numbers (1 up to 32 bits, else 2):
    layers R + 1; heads α = min(s, q), or min(k + 1, s, q) if a machine has at most k partners besides itself;
    queries and keys ⌈log2(q + 2)⌉ wide; values max(s·(2 + limbs), slots·Δ) wide with Δ = 6 + s·limbs, and slots
    ⌈12·α⁴·ln q⌉ in mode "theorem" and min(q, 4α + 32) in mode "practical".

    Args:
        protocol: deterministic and within its limits, which is tried out on an example before anything is compiled.
        attention: "ema" is exact-match attention, "anna" hashing with planned functions that tell all names apart.
        partners: k, to compile the protocol that `with_partners` makes of it: the improved theorem.
        mode: "theorem" takes the lemma's slots, "practical" the fewest that decode; every message is checked as it is
            decoded, and one that cannot be is an error naming layer, head and token.
        outputs_each: how many output words each machine holds, in order, when the protocol ends. With it token i holds
            output word i after the last layer, as in the Lemma "Final Output"; without it machine i's mail, from which
            the protocol's own `gather` reads the output.
        example: an input to try the protocol on; its own sample or random words if not given.
        slots: another number of slots for mode "practical".
        seed: of the code's matrix.
        memory_bytes: what one head may take; wider values are refused.

    >>> from annattn.mpc.protocols import Sum
    >>> model = to_transformer(Sum(n=9, memory_words=3))
    >>> int(model.run(range(9)))
    36
    >>> print(model.sizes)
    3 layers, 3 heads, queries and keys 3 wide, values 36 wide with at most 12 nonzeros
    """
    if not isinstance(protocol, Protocol):
        raise InputError("protocol", given=type(protocol).__name__, expected="an annattn.mpc.Protocol")
    _check_options(attention, mode, outputs_each)
    if outputs_each is not None and protocol.rounds == 0:
        raise CompileError("protocol", given="no rounds", expected="at least one to read outputs in")
    original = protocol
    if partners is not None:
        protocol = with_partners(protocol, partners)
    limits = protocol.limits
    rows, names, senders = MachineRows(limits), Identifiers(limits.machines), senders_per_head(limits)
    widths = value_widths(limits, mode, slots)
    _check_size(limits, widths, memory_bytes)
    admit(original, example)
    if protocol is not original:
        admit(protocol, example)
    code = _code(senders, limits.machines, mode, slots, seed)
    attend: Attention = ExactMatch() if attention == "ema" else Anna(separating_hasher(names))
    readers = Readers(limits.machines, outputs_each)
    layers = [init_layer(rows, names, attend)]
    for i in range(protocol.rounds):
        reads = readers if i == protocol.rounds - 1 else Readers(limits.machines)
        layers.append(Route(protocol, i, rows, names, code, senders, attend, reads).layer())
    output = same if outputs_each is None else partial(output_rows, protocol, rows, readers)
    return CompiledProtocol(layers, output, protocol=protocol, rows=rows, widths=widths, readers=readers)


def senders_per_head(limits: Limits) -> int:
    """α, the heads and the most messages averaged in one: min(s, q), and at most k + 1 with k partners.

    >>> senders_per_head(Limits(machines=100, memory_words=16)), senders_per_head(Limits(100, 16, partners=3))
    (16, 4)
    """
    most = min(limits.memory_words, limits.machines)
    return most if limits.partners is None else min(most, limits.partners + 1)


def value_widths(limits: Limits, mode: str = "practical", slots: int | None = None) -> ValueWidths:
    """Slots times Δ for the code that is built and for the lemma's two counts of slots.

    >>> value_widths(Limits(machines=64, memory_words=4, word_bits=32))
    ValueWidths(built=480, lemma=127770, square=7990)
    """
    senders, packet = senders_per_head(limits), packet_width(MachineRows(limits))
    lemma, square = lemma_slots(senders, limits.machines), enough_slots(senders, limits.machines)
    built = lemma if mode == "theorem" else min(slots or practical_slots(senders, limits.machines), limits.machines)
    return ValueWidths(built * packet, lemma * packet, square * packet)


def _code(senders: int, machines: int, mode: str, slots: int | None, seed: int) -> SparseCode:
    if mode == "theorem":
        return SparseCode.lemma(senders**2, machines, lemma_slots(senders, machines), seed)
    return SparseCode.practical(senders, machines, slots, seed)


def _check_options(attention: str, mode: str, outputs_each: int | None) -> None:
    if attention not in ("ema", "anna"):
        raise InputError("attention", given=repr(attention), expected='"ema" or "anna"')
    if mode not in ("theorem", "practical"):
        raise InputError("mode", given=repr(mode), expected='"theorem" or "practical"')
    if outputs_each is not None and outputs_each < 1:
        raise InputError("outputs_each", given=outputs_each, expected="an integer of at least 1, or None")


def _check_size(limits: Limits, widths: ValueWidths, memory_bytes: int) -> None:
    if limits.machines > MOST_MACHINES or senders_per_head(limits) * limits.machines**2 > 2**52:
        given = f"{limits.machines} machines, {senders_per_head(limits)} senders a head"
        expected = f"at most {MOST_MACHINES} machines, and sums of their squared numbers below 2^52, exact in float64"
        raise CompileError("protocol", given=given, expected=expected)
    # Values, their averages, the same as whole numbers, and the matrix of the code.
    width = max(widths.built, init_width(MachineRows(limits)))
    needed = 4 * 8 * limits.machines * width
    if needed > memory_bytes:
        given = f"values {width} wide for {limits.machines} machines, {needed / 2**30:.3g} GiB a head"
        hint = 'take mode="practical", partners=, or raise memory_bytes'
        raise CompileError("protocol", given=given, expected=f"at most {memory_bytes / 2**30:.3g} GiB", hint=hint)
