"""Theory: k-hop solved by a protocol and by the transformer compiled from it, the same round by round."""

from typing import Any

import numpy as np
from torch import Tensor

from annattn.compiler import CompiledProtocol, to_transformer
from annattn.compiler.transformer import Transformer
from annattn.measure import Progress, silent
from annattn.mpc import Mail, Protocol, run
from annattn.mpc.model import Words
from annattn.mpc.protocols import KHop
from annattn.theorems.induction_heads import letters_after

__all__ = ["RecordedProtocol", "k_hop", "same_mail"]

# What a round of each stage does, in the order of the protocol's stages.
_STAGES = (
    ("sort", "sorts the letters with their positions, so that equal letters are next to each other"),
    ("compare", "sends its last record to the next machine, which may hold the next occurrence of the same letter"),
    ("send home", "sends every position its first jump: to the position after the previous occurrence of its letter"),
    ("double", "asks where the jump of its jump leads, or answers: every two rounds the jumps become twice as long"),
)


class RecordedProtocol(Protocol):
    """A protocol that keeps the mail of every round.

    >>> recorded = RecordedProtocol(KHop(n=9, memory_words=30))
    >>> _ = run(recorded, [0] * 9)
    >>> len(recorded.sent) == recorded.rounds
    True
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol, self.limits, self.rounds = protocol, protocol.limits, protocol.rounds
        self.input_records, self.input_width = protocol.input_records, protocol.input_width
        self.sent: list[Mail] = []

    def scatter(self, words: Words) -> Mail:
        """The protocol's."""
        self.sent = []
        return self.protocol.scatter(words)

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        """The protocol's, kept."""
        self.sent.append(self.protocol.step(round, mail))
        return self.sent[-1]

    def gather(self, mail: Mail) -> Any:
        """The protocol's."""
        return self.protocol.gather(mail)


def k_hop(
    *, n: int = 128, k: int = 4, memory_words: int = 48, words: int = 4, seed: int = 0, progress: Progress = silent
) -> dict[str, Any]:
    """Theorem "ANNA-transformers solve k-hop" at one size: the protocol, the compiled transformer and the Definition.

    Outputs are compared on random words, with exact-match attention and with hashing. For the first word, what the
    transformer's tokens hold after each layer is also compared with what the machines hold after each round.

    >>> found = k_hop(n=9, k=2, memory_words=30, words=1)
    >>> found["equal"] == found["compared"], all(one["same"] for one in found["rounds"])
    (True, True)
    """
    protocol = KHop(n, memory_words, k=k)
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(0, 4, n, dtype=np.uint64) for _ in range(words)]
    progress(0, f"{n} letters on {protocol.limits.machines} machines")
    recorded = RecordedProtocol(protocol)
    result = run(recorded, inputs[0])
    models = {kind: to_transformer(protocol, kind, example=inputs[0]) for kind in ("ema", "anna")}
    compared = equal = 0
    for at, word in enumerate(inputs):
        answer, machines = letters_after(word, k), run(protocol, word).output
        for kind, model in models.items():
            progress((2 * at + (kind == "anna")) / (2 * words + 2), f"word {at + 1} of {words} on {kind.upper()}")
            compared += 1
            equal += bool(np.array_equal(model.run(word), answer) and np.array_equal(machines, answer))
    progress(2 * words / (2 * words + 2), "layer by layer")
    same = _same_after_each_layer(models["ema"], inputs[0], recorded.sent)
    names = [stage for stage, (rounds, _) in zip(_STAGES, protocol.stages, strict=True) for _ in range(rounds)]
    sizes = models["ema"].sizes
    laid_out = protocol.scatter(inputs[0])
    held = laid_out.width * np.bincount(laid_out.dest, minlength=protocol.limits.machines)
    rounds = []
    for load, mail, (name, what), agrees in zip(result.trace.loads, recorded.sent, names, same, strict=True):
        flows = np.zeros((protocol.limits.machines,) * 2, np.int64)
        np.add.at(flows, (mail.src, mail.dest), mail.width)
        rounds.append(
            {
                "stage": name,
                "what": what,
                "held": held.tolist(),
                "sent": load.sent.tolist(),
                "received": load.received.tolist(),
                "flows": flows.tolist(),
                "same": agrees,
            }
        )
        held = load.received
    return {
        "n": n,
        "k": k,
        "seed": seed,
        "machines": protocol.limits.machines,
        "memory_words": memory_words,
        "words_moved": result.trace.words,
        "largest_load": result.trace.largest_load,
        "rounds": rounds,
        "sizes": {
            "layers": sizes.layers,
            "heads": sizes.heads,
            "query_width": sizes.query_width,
            "value_width": sizes.value_width,
        },
        "words": words,
        "compared": compared,
        "equal": equal,
    }


def same_mail(one: Mail, other: Mail) -> bool:
    """Whether two mails hold the same records, in any order.

    >>> same_mail(Mail([0, 1], [0, 0], [7, 8]), Mail([1, 0], [0, 0], [8, 7]))
    True
    """
    columns = [np.column_stack([mail.dest.astype(np.uint64), mail.src, mail.words]) for mail in (one, other)]
    first, second = (rows[np.lexsort(rows.T)] for rows in columns)
    return np.array_equal(first, second)


def _same_after_each_layer(model: CompiledProtocol, word: Words, sent: list[Mail]) -> list[bool]:
    """Whether, after layer r + 2, the tokens hold the mail of round r; the first layer only lays out the input."""
    found: list[bool] = []
    rows: Tensor = model.embed(word)
    for number, layer in enumerate(model.layers):
        rows = Transformer([layer])(rows)
        if number:
            found.append(same_mail(model.rows.read(rows)[1], sent[number - 1]))
    return found
