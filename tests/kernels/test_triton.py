"""The GPU kernels in Triton's interpreter: the numbers of the torch backend, at sizes that cross every tile."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

import annattn as aa
from annattn.errors import BackendError
from annattn.kernels import Order, SumInputs, use_backend
from annattn.kernels.torch.backend import TorchBackend
from annattn.kernels.triton.backend import AtomicTritonBackend, TritonBackend
from annattn.lsh import IGNORED, NO_BUCKET, CrossPolytope, Euclidean, Hyperplane
from annattn.measure.gpu import attention_costs, decode_costs, gradient_costs, window_costs
from tests.kernels.test_gradient import case, gradients, over_all_pairs

pytestmark = [pytest.mark.triton, pytest.mark.skipif(not find_spec("triton"), reason="Triton is not installed")]
TRITON, ATOMIC, TORCH = TritonBackend(), AtomicTritonBackend(), TorchBackend()


def sum_inputs(n, m, *, order, buckets, shares=(1, 1), tables=2, width=3, dtype=torch.float32, spread=1, one=False):
    generator = torch.Generator().manual_seed(0)
    targets = spread * torch.randint(0, buckets, (1, 2 * shares[0], n, tables), generator=generator)
    sources = spread * torch.randint(0, buckets, (1, 2 * shares[1], m, tables), generator=generator)
    targets[:, :, ::7], sources[:, :, ::11] = IGNORED, NO_BUCKET
    value = torch.randint(-8, 9, (1, 2 * shares[1], m, width), generator=generator).to(dtype)
    return SumInputs(targets, sources, value, Order(order), buckets if spread == 1 else 0, one)


SUMS = {
    "tiles of tiles": {"n": 70, "m": 70, "buckets": 2},
    "one bucket": {"n": 9, "m": 150, "buckets": 1},
    "more queries than keys": {"n": 40, "m": 5, "buckets": 3},
    "wide codes": {"n": 30, "m": 30, "buckets": 3, "spread": 2**50},
    "query heads share a key head": {"n": 20, "m": 25, "buckets": 3, "shares": (3, 1)},
    "key heads share a query head": {"n": 20, "m": 25, "buckets": 3, "shares": (1, 2), "one": True},
    "two blocks of columns": {"n": 5, "m": 9, "buckets": 2, "width": 70},
    "bfloat16": {"n": 9, "m": 9, "buckets": 2, "dtype": torch.bfloat16},
    "float16": {"n": 9, "m": 9, "buckets": 2, "dtype": torch.float16},
    "float64": {"n": 9, "m": 9, "buckets": 2, "dtype": torch.float64},
    "no width": {"n": 5, "m": 5, "buckets": 2, "width": 0},
    "no keys": {"n": 5, "m": 0, "buckets": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("order", [-1, 0, 1])
def test_sums_equal_the_torch_backend(monkeypatch, shape, order):
    from annattn.kernels.triton import sums

    # Small tiles, so that few rows make three levels of them.
    monkeypatch.setattr(sums, "_TILE", 4)
    inputs = sum_inputs(order=order, **shape)
    total, count = TORCH.bucket_sum(inputs)
    for backend in (TRITON, ATOMIC):
        got, got_count = backend.bucket_sum(inputs)
        assert got.dtype == inputs.value.dtype
        assert torch.equal(got, total)
        assert torch.equal(got_count, count)


def test_tables_that_do_not_fit_at_once_come_in_turns(monkeypatch):
    from annattn.kernels.triton import sums

    inputs = sum_inputs(12, 13, order=1, buckets=3, tables=3)
    expected = TORCH.bucket_mean(inputs)[0]
    monkeypatch.setattr(sums, "_ROOM", 1)
    torch.testing.assert_close(TRITON.bucket_mean(inputs)[0], expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_a_value_that_is_not_finite_stays_in_its_bucket(monkeypatch):
    codes = torch.tensor([0, 1, 0, 1, 2]).reshape(1, 1, 5, 1)
    value = torch.tensor([1.0, torch.nan, 3.0, 4.0, torch.inf]).reshape(1, 1, 5, 1)
    for order in (Order.ALL, Order.CAUSAL):
        inputs = SumInputs(codes, codes, value, order, 3)
        expected = TORCH.bucket_sum(inputs)[0]
        assert torch.equal(TRITON.bucket_sum(inputs)[0].nan_to_num(-7), expected.nan_to_num(-7))


def test_buffers_full_of_nan_do_not_show(monkeypatch):
    from annattn.kernels.triton import sums

    inputs = sum_inputs(20, 33, order=0, buckets=3, width=2)
    expected = TORCH.bucket_sum(inputs)

    def poisoned(*shape, dtype, device):
        return torch.full(shape, torch.nan if dtype.is_floating_point else -7, dtype=dtype, device=device)

    monkeypatch.setattr(sums.torch, "empty", poisoned)
    got = TRITON.bucket_sum(inputs)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


FAMILIES = {
    "few hashes": (Hyperplane(5), 3, 3),
    "hashes of several depths": (Hyperplane(70), 9, 8),
    "wide codes": (Hyperplane(17), 2, 40),
    "dense axes": (CrossPolytope(5), 2, 3),
    "axes of two blocks": (CrossPolytope(70), 1, 1),
    "structured axes": (CrossPolytope(20, rotation="structured"), 2, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "tables", "hashes"), FAMILIES.values(), ids=FAMILIES)
def test_codes_equal_the_definition_for_every_dtype_length_and_layout(family, tables, hashes):
    hasher = family.sample(tables=tables, hashes=hashes, seed=1)
    rows = torch.randn(2, 9, 2, family.dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for dtype, scale in ((torch.float32, 1e-30), (torch.float32, 1.0), (torch.float32, 1e30), (torch.bfloat16, 1.0)):
        x = (rows * scale).to(dtype).transpose(1, 2)
        x[0, 1, 3, 2], x[1, 0, 8, 1], x[0, 0, 1] = torch.nan, torch.inf, 0
        assert torch.equal(TRITON.hash_rows(hasher, x), hasher(x))


def test_rows_on_a_boundary_are_decided_in_float64():
    hasher = Hyperplane(64).sample(tables=2, hashes=4, seed=0)
    x = torch.randn(1, 1, 200, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    normal = hasher.parameters[0][0].double()
    x = (x - (x @ normal)[..., None] * normal / normal.square().sum()).float()
    assert ((x @ normal.float() >= 0) != (x.double() @ normal >= 0)).any()
    assert torch.equal(TRITON.hash_rows(hasher, x), hasher(x))


GRADIENTS = {
    "one bucket": {"n": 66, "m": 50, "buckets": 1},
    "query heads share a key head": {"n": 20, "m": 21, "buckets": 3, "share": 2},
    "two blocks of columns": {"n": 5, "m": 6, "buckets": 1, "dim": 34, "width": 36},
    "codes of 50 bits": {"n": 12, "m": 13, "buckets": 4, "spread": 2**50},
    "few queries": {"n": 3, "m": 40, "buckets": 2},
    "no keys": {"n": 3, "m": 0, "buckets": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_equal_those_over_all_pairs(monkeypatch, shape, is_causal):
    # One batch row is enough here, and half the time.
    inputs = tuple(x[:1] for x in case(**shape))
    hint = 0 if "spread" in shape else shape["buckets"]
    wanted = over_all_pairs(monkeypatch, inputs, is_causal=is_causal, hint=hint)
    for dtype, tolerance in (
        ((torch.float64, 1e-11), (torch.float32, 2e-5)) if shape["n"] > 60 else ((torch.float64, 1e-11),)
    ):
        narrowed = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
        for a, b in zip(gradients(TRITON, narrowed, is_causal=is_causal, hint=hint), wanted, strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("attend", [aa.anna_attention, aa.latest_match_attention])
def test_attention_and_all_its_gradients_equal_the_torch_backend(attend):
    hasher = Hyperplane(8).sample(tables=2, hashes=2, seed=0)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, 9, 8, generator=generator).requires_grad_()
    key, value = (torch.randn(1, 2, 9, width, generator=generator).requires_grad_() for width in (8, 5))
    results = []
    for backend in ("torch", "triton"):
        with use_backend(backend):
            out = attend(query, key, value, hasher, **({"is_causal": True} if attend is aa.anna_attention else {}))
            weight = torch.arange(out.numel()).reshape(out.shape) % 7 - 3.0
            results.append((out, *torch.autograd.grad((out * weight).sum(), (query, key, value))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert a.abs().max() > 1e-2


STEPS = {
    "float32": {"tables": 5, "hashes": 3, "width": 70},
    "bfloat16": {"tables": 2, "hashes": 8, "width": 3, "dtype": torch.bfloat16},
    "float32 from float16": {"tables": 2, "hashes": 3, "width": 3, "dtype": torch.float16, "out": torch.float32},
    "newest": {"tables": 2, "hashes": 3, "width": 3, "mechanism": "latest_match"},
    "newest without history": {"tables": 2, "hashes": 3, "width": 3, "mechanism": "latest_match", "history": 0},
    "a draw per head": {"tables": 2, "hashes": 3, "width": 3, "draws": 2},
    "wide codes": {"tables": 2, "hashes": 14, "width": 3},
    "no history": {"tables": 5, "hashes": 3, "width": 3, "history": 0},
    "history of one": {"tables": 2, "hashes": 3, "width": 3, "history": 1},
    "default history": {"tables": 2, "hashes": 3, "width": 3, "history": 32},
    "history of several blocks": {"tables": 5, "hashes": 3, "width": 3, "history": 7, "places": 2},
    "newest, several blocks": {
        "tables": 5, "hashes": 2, "width": 3, "history": 7, "places": 2, "mechanism": "latest_match",
    },
}  # fmt: skip


class Launches:
    """What was launched, to be launched again as a CUDA graph does: the same kernels at the same addresses."""

    def __init__(self, monkeypatch, module):
        self.launch, self.seen = module.launch, []
        monkeypatch.setattr(module, "launch", self)

    def __call__(self, *given, **more):
        self.seen.append((given, more))
        self.launch(*given, **more)

    def replay(self):
        given, more = self.seen[-1]
        self.launch(*given, **more)


def step_tokens(kind, generator, steps):
    """Queries, keys and values of some steps; among them a query and a key that are not finite."""
    for step in range(steps):
        query, key, value = (
            torch.randn(2, heads, 1, width, generator=generator).to(kind["dtype"])
            for heads, width in ((4, 6), (2, 6), (2, kind["width"]))
        )
        if step == 2:
            query[0, 1, 0, 2] = torch.nan
        if step == 3:  # so that it leaves a history of four
            key[1, 0, 0, 2] = torch.inf
        yield query, key, value


def step_caches(kind):
    hasher = Hyperplane(6).sample(tables=kind["tables"], hashes=kind["hashes"], heads=kind["draws"])
    made = {"value_dim": kind["width"], "batch": 2, "heads": 2, "dtype": kind["out"], "mechanism": kind["mechanism"]}
    caches = []
    for backend in ("torch", "triton"):
        with use_backend(backend):
            caches.append(aa.BucketCache(hasher, history=kind["history"], **made))
    return caches


def step_of(backend, cache, *tokens, mask=None):
    with use_backend(backend):
        return cache.step(*tokens, key_mask=mask)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS.values(), ids=STEPS)
def test_a_decode_step_is_one_launch_and_equals_the_torch_backend(monkeypatch, kind):
    from annattn.kernels.triton import decode

    kind = {"dtype": torch.float32, "out": None, "mechanism": "anna", "draws": 1, "history": 4} | kind
    monkeypatch.setattr(decode, "_PLACES", kind.get("places", decode._PLACES))
    launches = Launches(monkeypatch, decode)
    slow, fast = step_caches(kind)
    got = torch.empty(0)
    for at, tokens in enumerate(step_tokens(kind, torch.Generator().manual_seed(0), 9)):
        mask = torch.tensor([[True], [False]]) if at == 4 else None
        wanted, got = step_of("torch", slow, *tokens, mask=mask), step_of("triton", fast, *tokens, mask=mask)
        torch.testing.assert_close(got[:1] if at == 4 else got, wanted[:1] if at == 4 else wanted, equal_nan=True)
    assert [given[1] for given, _ in launches.seen] == [(4,)] * 9  # one program per batch row and key head
    assert got[1].isnan().any()
    assert not got[0].isnan().any()
    assert fast.lengths == slow.lengths == [9, 8]
    assert fast.recent == slow.recent == [min(9, kind["history"]), min(8, kind["history"])]


@pytest.mark.slow
@pytest.mark.parametrize("history", [0, 3, 32])
def test_a_step_replayed_at_its_addresses_goes_on_through_everything_done_in_place(monkeypatch, history):
    """What a CUDA graph does: one step is recorded, then launched anew with other numbers in the same tensors."""
    from annattn.kernels.triton import decode

    kind = {"dtype": torch.float32, "out": None, "mechanism": "anna", "draws": 1, "history": history}
    kind |= {"tables": 3, "hashes": 2, "width": 3}
    launches = Launches(monkeypatch, decode)
    slow, fast = step_caches(kind)
    generator = torch.Generator().manual_seed(0)
    static = [torch.zeros(2, heads, 1, width) for heads, width in ((4, 6), (2, 6), (2, 3))]
    first = next(step_tokens(kind, generator, 1))
    for held, new in zip(static, first, strict=True):
        held.copy_(new)
    wanted, out = step_of("torch", slow, *first), step_of("triton", fast, *static)
    torch.testing.assert_close(out, wanted)

    def both(act):
        for backend, cache in (("torch", slow), ("triton", fast)):
            with use_backend(backend):
                act(cache)

    def append(cache):
        cache.append(
            torch.ones(2, 2, 5, 6), torch.ones(2, 2, 5, 3), key_mask=torch.tensor([[1, 0, 1, 1, 1]] * 2).bool()
        )

    states = [lambda cache: cache.attend(first[0]), append, lambda cache: cache.reorder([1, 0])]
    states += [lambda cache: cache.crop(min(history, 2)), lambda cache: cache.load_state_dict(cache.state_dict())]
    states += [lambda cache: cache.reset([0])]
    for act in [*states, lambda cache: cache.reset()]:
        for tokens in step_tokens(kind, generator, 3):
            for held, new in zip(static, tokens, strict=True):
                held.copy_(new)
            launches.replay()
            torch.testing.assert_close(out, step_of("torch", slow, *tokens), equal_nan=True)
        assert fast.lengths == slow.lengths
        assert fast.recent == slow.recent
        both(act)
    assert len(launches.seen) == 1


def test_a_step_reads_nothing_back(monkeypatch):
    kind = {"dtype": torch.float32, "out": None, "mechanism": "anna", "draws": 1, "history": 2}
    _, cache = step_caches(kind | {"tables": 2, "hashes": 2, "width": 3})
    reads = []
    for name in ("tolist", "item", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero"):
        kept = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, *a, kept=kept, name=name: reads.append(name) or kept(self, *a)
        )
    # The interpreter reads, a GPU does not.
    monkeypatch.setattr("annattn.kernels.triton.decode.launch", lambda *given, **more: None)
    for tokens in step_tokens(kind | {"width": 3}, torch.Generator().manual_seed(0), 3):
        step_of("triton", cache, *tokens)
    assert not reads
    assert cache.lengths == [0, 0]
    assert "tolist" in reads


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["gate", "joined"])
def test_a_window_cache_steps_as_the_torch_backend_does(combine):
    hasher = Hyperplane(6).sample(tables=3, hashes=2)
    generator = torch.Generator().manual_seed(0)
    caches = {}
    for backend in ("torch", "triton"):
        with use_backend(backend):
            caches[backend] = aa.WindowCache(
                hasher, window=3, shift=1, heads=2, value_dim=4, combine=combine, history=2
            )
    for step in range(9):
        query, key, value = (torch.randn(1, h, 1, d, generator=generator) for h, d in ((4, 6), (2, 6), (2, 4)))
        got = []
        for backend, cache in caches.items():
            with use_backend(backend):
                got.append(cache.step(query, key, value, gate=0.5))
                if step == 6:
                    cache.crop(2)
        torch.testing.assert_close(got[1], got[0])


@pytest.mark.parametrize(
    ("hasher", "dtype", "reason"),
    [
        (Euclidean(4).sample(tables=2, hashes=3), torch.float32, "Euclidean.* is not compiled"),
        (Hyperplane(4).sample(tables=2, hashes=64), torch.float32, "do not fit one code"),
        (Hyperplane(4).sample(tables=3, hashes=4, shared=True), torch.float32, "share hash functions are not compiled"),
        (Hyperplane(4).sample(tables=2, hashes=3), torch.float64, "are hashed in float64 by the torch backend"),
        (CrossPolytope(300, rotation="structured").sample(tables=1, hashes=1), torch.float32, "up to 128 axes"),
    ],
)
def test_it_says_what_it_cannot_do(hasher, dtype, reason):
    x = torch.randn(1, 1, 3, hasher.dim, dtype=dtype)
    with use_backend("triton"), pytest.raises(BackendError, match=reason):
        aa.anna_attention(x, x, x, hasher)


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=kept | {"CUDA_VISIBLE_DEVICES": ""} | environment,
    )


@pytest.mark.slow
def test_without_a_gpu_one_line_says_what_is_missing_and_how_to_try_the_interpreter():
    done = run("from annattn.kernels import use_backend\nwith use_backend('triton'): pass")
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("annattn.errors.BackendError: the backend 'triton' cannot run here: no CUDA GPU is visible")
    assert "set TRITON_INTERPRET=1 before Python starts" in said


@pytest.mark.slow
def test_triton_is_imported_when_a_kernel_is_first_run_and_never_for_cpu_tensors():
    program = """
import sys, torch, annattn as aa
x = torch.randn(1, 1, 5, 4)
aa.anna_attention(x, x, x, aa.lsh.Euclidean(4).sample(tables=2, hashes=3))  # not for the first backend in the list
assert "triton" not in sys.modules
with aa.kernels.use_backend("triton"):
    hasher = aa.lsh.Hyperplane(4).sample(tables=2, hashes=3)
    out = aa.anna_attention(x, x, x, hasher)
assert "triton" in sys.modules
torch.testing.assert_close(out, aa.anna_attention(x, x, x, hasher))
"""
    done = run(program, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr


def test_the_cost_model_counts_the_launches_there_are(monkeypatch):
    from annattn.kernels.triton import band, decode, hashing, outer, sums

    counted: dict[str, int] = {}

    def count(kernel, programs, *arguments, **more):
        if 0 not in programs:
            counted[kernel.__name__] = counted.get(kernel.__name__, 0) + 1

    for module in (band, decode, hashing, outer, sums):
        monkeypatch.setattr(module, "launch", count)
    monkeypatch.setattr(torch, "empty", torch.zeros)  # what no kernel fills is read all the same
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    hasher = Hyperplane(64).sample(tables=8, hashes=2)  # so few buckets that all tables are summed at once
    query, key, value = (torch.randn(1, 1, 9, 64).requires_grad_() for _ in range(3))
    with use_backend("triton"):
        out = aa.anna_attention(query, key, value, hasher)
        forward, again = attention_costs(9), gradient_costs(9)
        assert counted.pop("_hash_signs") == forward["hash"].launches
        assert counted.pop("_find") == forward["find"].launches
        assert counted.pop("_add_rows") + counted.pop("_add_tiles") == forward["add"].launches
        assert counted.pop("_read_sums") == forward["read"].launches
        out.sum().backward()
        assert counted.pop("_add_turns") == again["turns"].launches
        assert counted.pop("_find") == again["values: find"].launches + again["turns: find"].launches // 3
        counted.clear()
        aa.attention.sliding_window_attention(query, key, value, window=4, is_causal=True).sum().backward()
        assert counted.pop("_attend") == window_costs(9)["window"].launches
        assert set(counted) == {"_turn_queries", "_turn_keys"}
        counted.clear()
        aa.BucketCache(hasher, value_dim=64).step(*(x[:, :, :1].detach() for x in (query, key, value)))
        assert counted["_step"] == decode_costs()["step"].launches
