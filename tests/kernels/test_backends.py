"""Every backend gives what the torch backend gives, and that one what a loop over pairs gives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annattn.errors import BackendError, InputError
from annattn.kernels import BACKENDS, collect, dispatch, equal_rows, latest, use_backend

EVERY = pytest.mark.parametrize("backend", BACKENDS)


def pairs_seen(targets: int, sources: int, order: int) -> list[tuple[int, int]]:
    def sees(i, j):
        late = (sources - 1 - j) - (targets - 1 - i)  # how much farther from its end the source is than the target
        return order == 0 or order * late >= 0

    return [(i, j) for i in range(targets) for j in range(sources) if sees(i, j)]


@st.composite
def codes(draw):
    groups, tables = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    shares = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
    lengths = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    wide = draw(st.booleans())
    largest = 2**62 if wide else 5
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    named = torch.tensor([-1, 0, 1, 2, largest - 1])
    made = [
        named[torch.randint(0, 5, (groups, share, n, tables), generator=generator)]
        for share, n in zip(shares, lengths, strict=True)
    ]
    value = torch.randint(-8, 9, (*made[1].shape[:3], draw(st.integers(0, 3))), generator=generator)
    return made[0], made[1], value, 0 if wide else largest


@EVERY
@given(given_codes=codes(), order=st.sampled_from([-1, 0, 1]), one_table=st.booleans())
def test_collect_is_the_sum_over_pairs(backend, given_codes, order, one_table):
    targets, sources, value, buckets = given_codes
    total = torch.zeros(*targets.shape[:3], value.shape[-1])
    count = torch.zeros(targets.shape[:3], dtype=torch.int64)
    for i, j in pairs_seen(targets.shape[2], sources.shape[2], order):
        for g in range(targets.shape[0]):
            for a in range(targets.shape[1]):
                for b in range(sources.shape[1]):
                    t, s = targets[g, a, i], sources[g, b, j]
                    shared = int(((t == s) & (t >= 0)).sum())
                    total[g, a, i] += shared * value[g, b, j]
                    count[g, a, i] += shared
    with use_backend(backend):
        got_total, got_count = collect(targets, sources, value.float(), order, buckets, one_table)
    assert torch.equal(got_total, total)
    assert torch.equal(got_count, count)


@EVERY
@given(given_codes=codes())
def test_latest_is_the_newest_of_the_bucket(backend, given_codes):
    targets, sources, _, buckets = given_codes
    sources = sources[:, :1]
    expected = torch.full_like(targets, -1)
    for i, j in pairs_seen(targets.shape[2], sources.shape[2], 1):
        same = (targets[:, :, i] == sources[:, :, j]) & (targets[:, :, i] >= 0)
        expected[:, :, i] = torch.where(same, j, expected[:, :, i])
    with use_backend(backend):
        assert torch.equal(latest(targets, sources, buckets), expected)


@EVERY
@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2**31))
def test_equal_rows_share_a_code(backend, n, m, seed):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(0, 2, (2, 1, size, 2), generator=generator).float() for size in (n, m))
    with use_backend(backend):
        codes_x, codes_y = equal_rows(x, y)
    same = (x[:, :, :, None] == y[:, :, None]).all(-1)
    assert torch.equal(codes_x[:, :, :, None, 0] == codes_y[:, :, None, :, 0], same)


@EVERY
def test_the_ops_pass_torchs_own_checks(backend):
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(-1, 4, (2, 2, 5, 3), generator=generator)
    sources = torch.randint(-1, 4, (2, 1, 6, 3), generator=generator)
    value = torch.randn(2, 1, 6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    with use_backend(backend):
        for order in (-1, 0, 1):
            torch.library.opcheck(collect, (targets, sources, value, order, 4, False))
        torch.library.opcheck(latest, (targets, sources, 4))
        torch.library.opcheck(equal_rows, (value.detach(), value.detach()))


def test_an_unknown_backend_is_refused():
    with pytest.raises(InputError, match="backend: got 'cuda', expected one of"), use_backend("cuda"):
        pass


def test_when_none_can_run_every_reason_is_told(monkeypatch):
    for name, backend in BACKENDS.items():
        monkeypatch.setattr(backend, "unsupported_reasons", lambda value, name=name: [f"{name} is tired"])
    with pytest.raises(BackendError) as raised:
        dispatch.choose(torch.zeros(1))
    for name in BACKENDS:
        assert f"{name}: {name} is tired" in str(raised.value)
