"""From a protocol to a transformer: the paper's Theorem "ANNA simulates MPC", basic and improved."""

from typing import Literal

from numpy.typing import ArrayLike

from annattn.compiler.compiled_protocol import CompiledProtocol
from annattn.compiler.identifiers import Identifiers, separating_hasher
from annattn.compiler.init import init_layer
from annattn.compiler.mechanisms import Anna, Attention, ExactMatch
from annattn.compiler.memory import MachineRows
from annattn.compiler.out import Readers, output_function
from annattn.compiler.route import route_layers
from annattn.compiler.sizes import senders_per_head, value_widths
from annattn.compiler.sparse_code import message_code
from annattn.compiler.validation import check_arguments, check_by_running, check_sizes
from annattn.mpc import with_partners
from annattn.mpc.model import Protocol

__all__ = ["to_transformer"]


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

    The sizes, for q machines of s words, where a word is `limbs` numbers (1 up to 32 bits, else 2):

    - layers: R + 1;
    - heads: α = min(s, q), or min(k + 1, s, q) if a machine has at most k partners besides itself;
    - width of queries and keys: ⌈log2(q + 2)⌉;
    - width of values: max(s·(2 + limbs), slots·Δ) with Δ = 6 + s·limbs, where slots is ⌈12·α⁴·ln q⌉ in mode "theorem"
      and min(q, 4α + 32) in mode "practical".

    Args:
        protocol: must be deterministic and within its limits; it is run on an example before anything is compiled.
        attention: "ema" is exact-match attention; "anna" is hashing, with planned functions that tell all names apart.
        partners: k, to compile the protocol that `with_partners` makes: the improved theorem.
        mode: "theorem" takes the lemma's slots, "practical" as few as can be decoded. Every message is checked when it
            is decoded; one that cannot be decoded is an error that names layer, head and token.
        outputs_each: how many output words each machine holds, in order, when the protocol ends. If given, token i
            holds output word i after the last layer, as in the Lemma "Final Output". Otherwise token i holds machine
            i's mail, from which the protocol's own `gather` reads the output.
        example: an input to try the protocol on; by default its own sample or random words.
        slots: another number of slots for mode "practical".
        seed: decides the matrix of the code.
        memory_bytes: the memory that one head may take; wider values are refused.

    >>> from annattn.mpc.protocols import Sum
    >>> model = to_transformer(Sum(n=9, memory_words=3))
    >>> int(model.run(range(9)))
    36
    >>> print(model.sizes)
    3 layers, 3 heads, queries and keys 3 wide, values 36 wide with at most 12 nonzeros
    """
    check_arguments(protocol, attention, mode, outputs_each)
    source = protocol if partners is None else with_partners(protocol, partners)
    limits, widths = source.limits, value_widths(source.limits, mode, slots)
    check_sizes(limits, widths, memory_bytes)
    record_words = check_by_running(protocol, example)
    if source is not protocol:
        record_words = check_by_running(source, example)

    # What all layers share: a token's row is a machine's mail, queries and keys are names of machines, and values are
    # messages in a code that survives averaging.
    rows, names, heads = MachineRows(limits), Identifiers(limits.machines), senders_per_head(limits)
    code = message_code(heads, limits.machines, mode, slots, seed)
    attend: Attention = ExactMatch() if attention == "ema" else Anna(separating_hasher(names))
    readers = Readers(limits.machines, outputs_each)

    # The proof's three lemmas: Initialization, Routing, Final Output.
    first = init_layer(rows, names, attend)
    routing = route_layers(source, rows, names, code, heads, attend, readers)
    output = output_function(source, rows, readers)
    return CompiledProtocol(
        [first, *routing],
        output,
        protocol=source,
        rows=rows,
        widths=widths,
        readers=readers,
        record_words=record_words,
    )
