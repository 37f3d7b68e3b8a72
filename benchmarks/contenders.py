"""What is measured: each contender makes a call for n tokens of one head, and says whether its answer is right."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module  # peers are optional, and unknown to a type checker without them

import torch
from torch import Tensor

import annattn as aa
from annattn.kernels import use_backend
from annattn.lsh import Hasher

DIM = 64

Call = Callable[[], object]


def tokens(n: int, heads: int = 1, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, heads, n, DIM, generator=generator) for _ in range(3))  # pyright: ignore


def hyperplanes() -> Hasher:
    return aa.lsh.Hyperplane(DIM).sample(tables=8, hashes=8, seed=0)


def verify_anna(
    query: Tensor, key: Tensor, value: Tensor, hasher: Hasher, out: Tensor, *, is_causal: bool = False
) -> None:
    """Compare a sample of outputs with the sum over all pairs in float64; a wrong answer is not worth timing."""
    n = query.shape[2]
    some = torch.arange(0, n, max(1, n // 16))
    codes = hasher(query[:, :, some]), hasher(key)
    for place, i in enumerate(some.tolist()):
        last = i + 1 if is_causal else n
        counts = (codes[0][:, :, place, None] == codes[1][:, :, :last]).sum(-1).double()
        expected = (counts[..., None] * value[:, :, :last].double()).sum(2) / counts.sum(-1, keepdim=True).clamp(min=1)
        torch.testing.assert_close(out[:, :, i].double(), expected, rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Contender:
    """`make(n)` returns the call to time, having checked its answer."""

    label: str
    make: Callable[[int], Call]
    is_peer: bool = False


def _anna(is_causal: bool, backend: str) -> Callable[[int], Call]:
    def make(n: int) -> Call:
        query, key, value = tokens(n)
        hasher = hyperplanes()

        def call() -> Tensor:
            with use_backend(backend):
                return aa.anna_attention(query, key, value, hasher, is_causal=is_causal)

        verify_anna(query, key, value, hasher, call(), is_causal=is_causal)
        return call

    return make


def _floor(n: int) -> Call:
    sources = [*tokens(n), torch.randn(1, 1, n, DIM)]
    copies = [torch.empty_like(x) for x in sources]

    def call() -> None:
        for source, copy in zip(sources, copies, strict=True):
            copy.copy_(source)

    return call


def _softmax(n: int) -> Call:
    query, key, value = tokens(n)
    return lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value)


def _performer(n: int) -> Call:
    attend = import_module("performer_pytorch").FastAttention(dim_heads=DIM, nb_features=256)
    inputs = tokens(n)

    def call() -> Tensor:
        with torch.no_grad():
            return attend(*inputs)

    return _finite(call)


def _reformer(n: int) -> Call:
    attend = import_module("reformer_pytorch").LSHAttention(bucket_size=64, n_hashes=8, causal=False)
    query, _, value = (x[:, 0] for x in tokens(n))

    def call() -> Tensor:
        with torch.no_grad():
            return attend(query, value)[0]

    return _finite(call)


def _linformer(n: int) -> Call:
    attend = import_module("linformer").LinformerSelfAttention(dim=DIM, seq_len=n, heads=1, k=256)
    tokens_in = tokens(n)[0][:, 0]

    def call() -> Tensor:
        with torch.no_grad():
            return attend(tokens_in)

    return _finite(call)


def _finite(call: Callable[[], Tensor]) -> Call:
    if not call().isfinite().all():
        raise AssertionError("the peer's answer is not finite")
    return call


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
