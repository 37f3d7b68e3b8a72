"""What is measured: each contender makes a call for n tokens of one head, and checks its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module  # peers are optional, and unknown to a type checker without them

import torch
from torch import Tensor

import annattn as aa
from annattn.errors import AnnattnError
from annattn.kernels import use_backend
from annattn.lsh import Hasher
from annattn.measure.answers import check_answer, collision_counts, copy_floor, random_inputs

DIM = 64


def tokens(n: int, heads: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    return random_inputs(n, heads=heads, dim=DIM)


def hyperplanes() -> Hasher:
    return aa.lsh.Hyperplane(DIM).sample(tables=8, hashes=8, seed=0)


def check_anna(
    query: Tensor, key: Tensor, value: Tensor, hasher: Hasher, out: Tensor, *, is_causal: bool = False
) -> None:
    """Compare a sample of outputs with the sum over all pairs in float64; a wrong answer is not worth timing."""
    check_answer("ANNA", out, collision_counts(query, key, hasher, is_causal=is_causal), value)


@dataclass(frozen=True)
class Case:
    """A call for one number of tokens, and a check that raises if its answer is wrong; without one it is trusted."""

    call: Callable[[], Tensor]
    check: Callable[[Tensor], None] | None = None


@dataclass(frozen=True)
class Contender:
    label: str
    prepare: Callable[[int], Case]
    is_peer: bool = False

    def make(self, n: int) -> Callable[[], Tensor]:
        """The call to time, its answer checked."""
        case = self.prepare(n)
        if case.check is not None:
            case.check(case.call())
        return case.call


def _anna(is_causal: bool, backend: str) -> Callable[[int], Case]:
    def prepare(n: int) -> Case:
        query, key, value = tokens(n)
        hasher = hyperplanes()

        def call() -> Tensor:
            with use_backend(backend):
                return aa.anna_attention(query, key, value, hasher, is_causal=is_causal)

        return Case(call, lambda out: check_anna(query, key, value, hasher, out, is_causal=is_causal))

    return prepare


def _floor(n: int) -> Case:
    query, key, value = tokens(n)
    return Case(copy_floor(query, key, value), lambda out: torch.testing.assert_close(out, value, rtol=0, atol=0))


def _softmax(n: int) -> Case:
    query, key, value = tokens(n)
    # Not checked: one more call would take half a minute at the longest lengths.
    return Case(lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value))


def _performer(n: int) -> Case:
    attend = import_module("performer_pytorch").FastAttention(dim_heads=DIM, nb_features=256)
    inputs = tokens(n)
    return Case(_without_gradients(lambda: attend(*inputs)), _check_finite)


def _reformer(n: int) -> Case:
    attend = import_module("reformer_pytorch").LSHAttention(bucket_size=64, n_hashes=8, causal=False)
    query, _, value = (x[:, 0] for x in tokens(n))
    return Case(_without_gradients(lambda: attend(query, value)[0]), _check_finite)


def _linformer(n: int) -> Case:
    attend = import_module("linformer").LinformerSelfAttention(dim=DIM, seq_len=n, heads=1, k=256)
    inputs = tokens(n)[0][:, 0]
    return Case(_without_gradients(lambda: attend(inputs)), _check_finite)


def _without_gradients(attend: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def call() -> Tensor:
        with torch.no_grad():
            return attend()

    return call


def _check_finite(out: Tensor) -> None:
    if not out.isfinite().all():
        raise AnnattnError("the peer's answer is not finite")


CONTENDERS: dict[str, Contender] = {
    "floor": Contender("copying q, k, v, out once", _floor),
    "anna": Contender("ANNA", _anna(False, "numba")),
    "causal": Contender("ANNA, causal", _anna(True, "numba")),
    "anna_torch": Contender("ANNA, torch backend", _anna(False, "torch")),
    "softmax": Contender("torch softmax attention", _softmax, is_peer=True),
    "performer": Contender("performer-pytorch, 256 features", _performer, is_peer=True),
    "reformer": Contender("reformer-pytorch, 8 hashes", _reformer, is_peer=True),
    "linformer": Contender("linformer, k = 256", _linformer, is_peer=True),
}
