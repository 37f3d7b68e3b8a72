"""Random protocols and transformers, and the cases made of them: `python -m tests.compiler.cases --count 1000`."""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from annattn.compiler import Anna, ExactMatch, Head, Layer, LowRank, Transformer, to_protocol, to_transformer
from annattn.lsh import Hyperplane
from annattn.mpc import Limits, Mail, Protocol, run
from annattn.mpc.parts.stages import index_within
from annattn.seeds import scramble


class RandomProtocol(Protocol):
    """Random limits, random message patterns within them, random local functions, all drawn from a seed.

    In every round each pair of machines has a random allowance of records, such that no inbox and no outbox can
    overflow; some receivers are favourites. Whether a record of the allowance is sent, and what it says, are random
    functions of the sender's whole inbox: contents, senders and order.
    """

    def __init__(self, seed: int, machines: int = 20, memory: int = 10, rounds: int = 4, word_bits: int = 64) -> None:
        rng = np.random.default_rng(seed)
        self.seed, self.rounds = seed, int(rng.integers(0, rounds + 1))
        count, words = int(rng.integers(1, machines + 1)), int(rng.integers(1, memory + 1))
        bits = int(rng.choice([1, 5, 31, 32, 33, 63, 64])) if word_bits == 64 else word_bits
        partners = int(rng.integers(1, 5)) if rng.random() < 0.3 else None
        self.limits = Limits(count, words, bits, partners)
        self.input_width = int(rng.integers(1, min(3, words) + 1))
        self.input_records = int(rng.integers(1, count * (words // self.input_width) + 1))
        self.width = rng.integers(1, min(3, words) + 1, self.rounds)
        self.allowance = [self._allow(rng, words // int(width), partners) for width in self.width]

    def _allow(self, rng: np.random.Generator, room: int, partners: int | None) -> np.ndarray:
        count = self.limits.machines
        allowed = np.zeros((count, count), np.int64)
        favourites = rng.integers(0, count, max(1, count // 4))
        for _ in range(int(rng.integers(1, 4)) * count * room):
            i = int(rng.integers(count))
            j = int(rng.choice(favourites) if rng.random() < 0.5 else rng.integers(count))
            if allowed[i].sum() == room or allowed[:, j].sum() == room:
                continue
            if partners and i != j and allowed[i, j] == 0:
                others = np.arange(count)
                if ((allowed[i] > 0) & (others != i)).sum() == partners:
                    continue
                if ((allowed[:, j] > 0) & (others != j)).sum() == partners:
                    continue
            allowed[i, j] += 1
        return allowed

    def step(self, round: int, mail: Mail) -> Mail:  # noqa: A002 - the model's word
        digest = np.zeros(self.limits.machines, np.uint64)
        place = index_within(mail.dest).astype(np.uint64)
        for column in range(mail.width):
            salted = mail.words[:, column] ^ scramble(place * np.uint64(8) + np.uint64(column), salt=1)
            np.add.at(digest, mail.dest, scramble(salted ^ scramble(mail.src.astype(np.uint64), salt=2), salt=3))
        awake = np.zeros(self.limits.machines, bool)
        awake[mail.dest] = True
        i, j = np.nonzero(self.allowance[round] * awake[:, None])
        times = self.allowance[round][i, j]
        src, dest = np.repeat(i, times), np.repeat(j, times)
        number = np.arange(len(src), dtype=np.uint64)
        fate = scramble(digest[src] ^ scramble(dest.astype(np.uint64), salt=self.seed + 4), salt=round)
        # The number of a record within its sender's outbox, not within all mail: a machine knows only its own.
        own = (number - np.searchsorted(src, src).astype(np.uint64)).astype(np.uint64)
        fate = scramble(fate ^ scramble(own, salt=5), salt=6)
        columns = [scramble(fate, salt=7 + c) & np.uint64(self.limits.largest_word) for c in range(self.width[round])]
        sent = Mail(dest, src, np.column_stack(columns).reshape(len(src), int(self.width[round])))
        return sent.take(fate % np.uint64(4) > 0)

    def gather(self, mail: Mail) -> tuple:
        """All there is to see: receivers, senders, words."""
        return mail.dest.tolist(), mail.src.tolist(), mail.words.tolist() if len(mail) else []


def random_input(protocol: Protocol, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = (protocol.input_records or 1, protocol.input_width or 1)
    return rng.integers(0, protocol.limits.largest_word, shape, dtype=np.uint64, endpoint=True)


def random_transformer(seed: int, kinds: str, dim: int = 3) -> Transformer:
    """Layers of one to three heads with random element-wise functions that keep numbers within -4 … 4."""
    rng = np.random.default_rng(seed)
    layers = []
    for kind in kinds:
        heads, width = int(rng.integers(1, 4)), int(rng.integers(1, 3))
        attention = {"e": ExactMatch(), "l": LowRank(), "a": Anna(Hyperplane(width).sample(tables=3, hashes=2))}[kind]
        values = [int(rng.integers(1, 4)) for _ in range(heads)]
        made = [
            Head(_few(rng, dim, width), _few(rng, dim, width), _wave(rng, dim, value), width, value) for value in values
        ]
        out = _wave(rng, dim + sum(values), dim)
        layers.append(Layer(made, attention, update=lambda x, reads, out=out: out(torch.cat([x, *reads], 1))))
    return Transformer(layers, output=_wave(rng, dim, 2))


def _wave(rng: np.random.Generator, dim: int, width: int) -> Callable:
    weight, phase = torch.from_numpy(rng.uniform(-1, 1, (width, dim))), torch.from_numpy(rng.uniform(-3, 3, width))
    # Summed coordinate by coordinate: the same bits for a row whatever rows it comes with.
    return lambda x: torch.cos((x[:, None, :] * weight).sum(-1) + phase)


def _few(rng: np.random.Generator, dim: int, width: int) -> Callable:
    """Few different rows, so that many match, and far from where rounding could change one."""
    wave = _wave(rng, dim, width)
    return lambda x: torch.floor(wave(x) * 1.5)


def compiled_equals(seed: int, attention: str) -> None:
    """A random protocol on exact-match or ANNA attention gives what it gives on machines.

    Every third has so many machines that they must share the slots of the code.
    """
    protocol = RandomProtocol(seed, machines=20 if seed % 3 else 200)
    words = random_input(protocol, seed)
    model = to_transformer(protocol, attention, seed=seed)  # type: ignore[arg-type]
    assert model.run(words) == run(protocol, words).output, seed


def protocol_round_trip(seed: int) -> None:
    """Protocol to transformer to protocol."""
    protocol = RandomProtocol(seed, machines=5, memory=3, rounds=2, word_bits=32)
    words = random_input(protocol, seed)
    model = to_transformer(protocol, "ema" if seed % 2 else "anna")
    tokens = model.embed(words)
    again = to_protocol(model, len(tokens), memory_words=2000 + 500 * (seed % 5))
    rows = run(again, again.encode(tokens)).output
    assert model.read(torch.from_numpy(rows)) == run(protocol, words).output, seed


def low_rank_as_anna(seed: int) -> None:
    """Low-rank transformer to protocol to ANNA transformer; rounding is that of float64 sums in another order."""
    rng = np.random.default_rng(seed)
    n, kinds = int(rng.integers(1, 9)), "l" * int(rng.integers(1, 3))
    direct = random_transformer(seed, kinds)
    rows = torch.from_numpy(rng.uniform(-1, 1, (n, 3)))
    protocol = to_protocol(direct, n, memory_words=60, dim=3)
    model = to_transformer(protocol, "anna", example=protocol.encode(rows))
    out = model.run(protocol.encode(rows))
    assert np.array_equal(out, run(protocol, protocol.encode(rows)).output), seed
    assert np.allclose(out, direct(rows).numpy(), rtol=0, atol=1e-12), seed


CASES: dict[str, Callable[[int], None]] = {
    "random protocols on EMA": lambda seed: compiled_equals(seed, "ema"),
    "random protocols on ANNA": lambda seed: compiled_equals(seed, "anna"),
    "protocol, transformer, protocol": protocol_round_trip,
    "low rank, protocol, ANNA": low_rank_as_anna,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--only", choices=list(CASES), action="append")
    chosen = parser.parse_args()
    for name in chosen.only or CASES:
        start = time.perf_counter()
        for seed in range(chosen.count):
            CASES[name](seed)
            if seed % 50 == 49:
                sys.stderr.write(f"\r{name}: {seed + 1} of {chosen.count}")
        sys.stderr.write("\r")
        sys.stdout.write(f"{name}: {chosen.count} cases, all equal, {time.perf_counter() - start:.0f} s\n")


if __name__ == "__main__":
    main()
