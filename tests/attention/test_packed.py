"""Documents packed into one sequence are attended to as if each were alone."""

from itertools import pairwise

import pytest
import torch

import annattn as aa
from annattn.errors import InputError
from annattn.kernels import BACKENDS, use_backend
from annattn.lsh import Euclidean, Hyperplane

ENDS = torch.tensor([0, 7, 7, 8, 30, 41])
HASHERS = {
    "narrow": Hyperplane(4).sample(tables=5, hashes=3, seed=0),
    "per head": Hyperplane(4).sample(tables=5, hashes=3, seed=0, heads=2),
    "63 bits": Hyperplane(4).sample(tables=3, hashes=63, seed=0),
    "too wide for a code": Hyperplane(4).sample(tables=3, hashes=70, seed=0),
    "unbounded": Euclidean(4, width=2.0).sample(tables=3, hashes=2, seed=0),
}
every_hasher = pytest.mark.parametrize("hasher", HASHERS.values(), ids=HASHERS)


def tokens(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    query, key = (pool[torch.randint(5, (1, heads, 41), generator=generator)] for heads in (4, 2))
    value = torch.randint(-9, 10, (1, 2, 41, 3), generator=generator).double()
    return query, key, value, torch.rand(1, 41, generator=generator) < 0.8


def by_document(attend, query, key, value, mask):
    """Each document in a call of its own."""
    spans = [slice(int(a), int(b)) for a, b in pairwise(ENDS)]
    return torch.cat([attend(query[:, :, s], key[:, :, s], value[:, :, s], mask[:, s]) for s in spans], dim=2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_causal", [False, True])
@every_hasher
def test_packed_documents_equal_a_call_for_each(hasher, is_causal, backend):
    query, key, value, mask = tokens()
    if backend.startswith("triton"):  # which hashes no float64
        query, key, value = query.float(), key.float(), value.float()
    numbers = torch.searchsorted(ENDS[1:], torch.arange(41), right=True)[None]

    def attend(q, k, v, m, **options):
        return aa.anna_attention(q, k, v, hasher, is_causal=is_causal, key_mask=m, **options)

    expected = by_document(attend, query, key, value, mask)
    with use_backend(backend if hasher.buckets else "torch"):
        for documents in (ENDS, ENDS.int(), numbers):
            assert torch.equal(attend(query, key, value, mask, documents=documents), expected)
    assert not torch.equal(attend(query, key, value, mask), expected)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("combine", ["gate", "joined"])
@pytest.mark.parametrize("form", ["hashed", "sampled", "expected"])
def test_packed_documents_with_a_window_equal_a_call_for_each(form, combine, is_causal):
    query, key, value, mask = tokens()
    gate = torch.tensor([0.3, -0.2, 0.0, 2.0], dtype=torch.float64)

    def attend(q, k, v, m, **options):
        return aa.window_attention(
            q, k, v, HASHERS["per head"], window=4, form=form, noise=0.5, combine=combine, gate=gate,
            shift=int(is_causal), is_causal=is_causal, key_mask=m, **options,
        )  # fmt: skip

    expected = by_document(attend, query, key, value, mask)
    tolerance = 1e-12 if form == "hashed" else 1e-6  # the cosine of equal rows tells their angle to √eps only
    out = attend(query, key, value, mask, documents=ENDS)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


def test_gradients_stay_inside_a_document():
    query, key, value, _ = tokens()
    leaves = query.requires_grad_(), key.requires_grad_(), value.requires_grad_()
    out = aa.anna_attention(*leaves, HASHERS["narrow"], is_causal=True, documents=ENDS)
    grads = torch.autograd.grad(out[:, :, 8:30].square().sum(), leaves)
    q, k, v = alone = [x[:, :, 8:30].detach().requires_grad_() for x in leaves]
    expected = torch.autograd.grad(aa.anna_attention(q, k, v, HASHERS["narrow"], is_causal=True).square().sum(), alone)
    for grad, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad[:, :, 8:30], wanted)
        assert grad[:, :, :8].count_nonzero() == 0
        assert grad[:, :, 30:].count_nonzero() == 0


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_lost_key_is_lost_to_its_own_document_alone(is_causal):
    query, key, value, mask = tokens()
    key[0, 1, 20] = torch.nan
    mask[0, 20] = True

    def attend(q, k, v, m, **options):
        return aa.anna_attention(q, k, v, HASHERS["narrow"], is_causal=is_causal, key_mask=m, **options)

    out = attend(query, key, value, mask, documents=ENDS)
    torch.testing.assert_close(out, by_document(attend, query, key, value, mask), equal_nan=True)
    assert out[0, 2:, 20 if is_causal else 8 : 30].isnan().all()
    assert out[0, :, 30:].isfinite().all()


@pytest.mark.slow
def test_packed_calls_compile_into_one_graph():
    query, key, value, _ = tokens()
    for hasher in (HASHERS["narrow"], HASHERS["63 bits"]):
        torch.compiler.reset()

        def attend(q, k, v, documents, hasher=hasher):
            return aa.anna_attention(q, k, v, hasher, is_causal=True, documents=documents)

        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(query, key, value, ENDS), attend(query, key, value, ENDS))


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (torch.tensor([0, 5]), "the length of the sequence"),
        (torch.tensor([3, 41]), "boundaries"),
        (torch.tensor([0, 30, 20, 41]), "the end of each document in turn"),
        (torch.tensor([0.0, 41.0]), "integers"),
        ([0, 41], "integers"),
        (torch.zeros(2, 41, dtype=torch.int64), "a number per token"),
        (torch.full((1, 41), 41), "numbers from 0 to 40"),
    ],
)
def test_wrong_boundaries_are_refused(documents, message):
    query, key, value, _ = tokens()
    with pytest.raises(InputError, match=f"documents: .*{message}"):
        aa.anna_attention(query, key, value, HASHERS["narrow"], documents=documents)
    with pytest.raises(InputError, match="as many queries as keys"):
        aa.anna_attention(query[:, :, :3], key, value, HASHERS["narrow"], documents=ENDS)


def test_what_follows_in_another_document_is_not_read():
    query, key, value, _ = tokens()
    alternating = (torch.arange(41) % 2)[None]
    out = aa.window_attention(
        query, key, value, HASHERS["narrow"], window=0, shift=1, is_causal=True, documents=alternating
    )
    assert out.count_nonzero() == 0
