import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import annattn as aa
from annattn.attention.exact_match import exact_match_weights
from annattn.attention.reference import visible
from annattn.errors import InputError


def violations(weights, query, key, radius, approximation, tables):
    """The Definition read aloud, pair by pair."""
    far, near = [], []
    for i, q in enumerate(query.tolist()):
        distance = [sum((a - b) ** 2 for a, b in zip(q, k, strict=True)) ** 0.5 for k in key.tolist()]
        reach = sum(d <= approximation * radius for d in distance)
        for j, d in enumerate(distance):
            if weights[i][j] > 0 and d > approximation * radius:
                far.append((i, j))
            if d <= radius and weights[i][j] < 1 / ((reach - 1) * tables + 1):
                near.append((i, j))
    return far, near


@given(st.integers(0, 10_000))
def test_reports_the_pairs_that_break_either_condition(seed):
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.randint(0, 4, (n, 2), generator=generator).double() for n in (4, 5))
    weights = torch.rand(4, 5, generator=generator, dtype=torch.float64) * (torch.rand(4, 5, generator=generator) < 0.5)
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-9)
    report = aa.check_anna(weights, query, key, radius=1.0, approximation=2.0, tables=2)
    far, near = violations(weights.tolist(), query, key, 1.0, 2.0, 2)
    assert [tuple(pair) for pair in report.far.tolist()] == far
    assert [tuple(pair) for pair in report.near.tolist()] == near


@pytest.mark.parametrize(("radius", "approximation"), [(1.0, 2.0), (0.25, 6.0), (3.0, 1.5)])
def test_the_two_radii_are_r_and_c_times_r_to_the_last_bit(radius, approximation):
    def just(beyond):
        return torch.nextafter(torch.tensor(beyond, dtype=torch.float64), torch.tensor(torch.inf)).item()

    far = radius * approximation
    keys = torch.tensor([[radius], [just(radius)], [far], [just(far)]], dtype=torch.float64)
    query = torch.zeros(1, 1, dtype=torch.float64)
    everywhere = torch.full((1, 4), 0.25)
    report = aa.check_anna(everywhere, query, keys, radius=radius, approximation=approximation, tables=1)
    # Only the key just beyond c·r is far; three keys are within it, so the near one needs weight 1/3.
    assert (report.far.tolist(), report.near.tolist()) == ([[0, 3]], [[0, 0]])
    enough = torch.tensor([[1 / 3, 0, 2 / 3, 0]], dtype=torch.float64)
    assert aa.check_anna(enough, query, keys, radius=radius, approximation=approximation, tables=1).holds


def test_exact_match_attention_satisfies_the_definition_with_repeated_keys():
    # With N(q, cr) read as a set of points, the two equal keys would each need weight 1.
    query, key = torch.tensor([[0.0], [5.0], [9.0]]), torch.tensor([[0.0], [0.0], [5.0]])
    weights = exact_match_weights(query, key, visible(3, 3))
    assert weights[0].tolist() == [0.5, 0.5, 0.0]
    report = aa.check_anna(weights, query, key, radius=0.0, approximation=1e9, tables=1)
    assert report.holds
    assert str(report) == "the Definition holds"


def test_rows_that_are_no_weights_are_reported():
    query, key = torch.zeros(3, 1), torch.zeros(2, 1)
    weights = torch.tensor([[1.5, -0.5], [0.5, 0.4], [torch.nan, 1.0]])
    report = aa.check_anna(weights, query, key, radius=1.0, approximation=2.0, tables=8)
    assert report.negative.tolist() == [[0, 1], [2, 0]]
    assert report.unnormalised.tolist() == [[1], [2]]
    assert not report.holds


def test_a_report_says_what_is_broken_how_often_and_where_first():
    query, key = torch.tensor([[0.0], [0.0]]), torch.tensor([[0.0], [3.0]])
    weights = torch.tensor([[0.5, 0.5], [1.5, -0.75]])
    report = aa.check_anna(weights, query, key, radius=1.0, approximation=2.0, tables=1)
    assert str(report) == (
        "the Definition is broken: 1 far, first (0, 1); 1 near, first (0, 0); 1 negative, first (1, 1); "
        "1 unnormalised, first (1,)"
    )


def test_a_blank_row_passes_only_without_a_near_key():
    query, key = torch.tensor([[0.0], [10.0]]), torch.tensor([[0.0]])
    report = aa.check_anna(torch.zeros(2, 1), query, key, radius=1.0, approximation=2.0, tables=1)
    assert report.near.tolist() == [[0, 0]]
    assert report.unnormalised.tolist() == [[0]]


def test_leading_axes_are_part_of_the_indices():
    query = torch.zeros(2, 3, 1, 1)
    weights = torch.zeros(2, 3, 1, 1)
    weights[0] = 1
    report = aa.check_anna(weights, query, query, radius=1.0, approximation=2.0, tables=1)
    assert report.near.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 2, 0, 0]]


def ball(n, dim, norm, generator, *, sphere):
    rows = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    rows = norm * rows / rows.norm(dim=1, keepdim=True)
    return rows if sphere else rows * torch.rand(n, 1, generator=generator, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("sphere", [True, False])
@pytest.mark.parametrize("norm", [1.0, 3.0])
@given(seed=st.integers(0, 10_000), beta=st.floats(0, 3), share=st.floats(0.05, 0.95), n=st.integers(1, 12))
def test_softmax_of_bounded_vectors_satisfies_the_definition(norm, sphere, seed, beta, share, n):
    generator = torch.Generator().manual_seed(seed)
    query, key = (ball(n, 2, norm, generator, sphere=sphere) for _ in range(2))
    key[: n // 2] = query[: n // 2]
    key[0] = -query[0]
    beta /= norm**2
    found = aa.attention.softmax_parameters(beta, radius=share * 2 * norm, norm=norm, equal_norms=sphere)
    weights = torch.softmax(beta * query @ key.T, dim=1)
    assert aa.check_anna(weights, query, key, **vars(found)).holds


@pytest.mark.parametrize(
    ("norm", "radius", "sphere"),
    [(1.0, 0.7, True), (2.0, 3.5, True), (1.0, 0.5, False), (2.0, 1.9, False), (1.0, 1.6, False)],
)
def test_softmax_needs_the_tables_that_are_computed(norm, radius, sphere):
    # One key as near as the others are ahead of it: the worst case of the docstring.
    if sphere:
        angle = 2 * torch.asin(torch.tensor(radius / (2 * norm), dtype=torch.float64))
        query = torch.tensor([[norm, 0.0]], dtype=torch.float64)
        near = norm * torch.stack([angle.cos(), angle.sin()])[None]
        ahead = query
    else:
        length = min((norm + radius) / 2, norm)
        query = torch.tensor([[length, 0.0]], dtype=torch.float64)
        near, ahead = torch.tensor([[length - radius, 0.0], [norm, 0.0]], dtype=torch.float64).split(1)
    key = torch.cat([near, ahead])
    for beta in (0.5 / norm**2, 2 / norm**2, 4 / norm**2):
        found = aa.attention.softmax_parameters(beta, radius=radius * (1 + 1e-9), norm=norm, equal_norms=sphere)
        weights = torch.softmax(beta * query @ key.T, dim=1)
        assert aa.check_anna(weights, query, key, **vars(found)).holds
        if found.tables > 1:
            fewer = vars(found) | {"tables": found.tables - 1}
            assert not aa.check_anna(weights, query, key, **fewer).holds


def test_parameters_of_softmax_that_make_no_sense_are_refused():
    for beta, radius, norm in ((-1.0, 1.0, 1.0), (1.0, 2.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)):
        with pytest.raises(InputError, match="beta, norm, radius"):
            aa.attention.softmax_parameters(beta, radius=radius, norm=norm)
    with pytest.raises(InputError, match="scores less than 40 apart"):
        aa.attention.softmax_parameters(1e6, radius=1.0)


def test_radius_zero_means_equal_for_every_approximation():
    query, key = torch.tensor([[0.0]]), torch.tensor([[0.0], [0.5]])
    for approximation in (2.0, torch.inf):
        kinds = {"radius": 0.0, "approximation": approximation, "tables": 1}
        assert aa.check_anna(torch.tensor([[1.0, 0.0]]), query, key, **kinds).holds
        report = aa.check_anna(torch.tensor([[0.9, 0.1]]), query, key, **kinds)
        assert (report.far.tolist(), report.near.tolist()) == ([[0, 1]], [[0, 0]])


def test_with_leading_axes_every_head_is_checked_by_itself():
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randint(0, 4, (2, 3, n, 2), generator=generator).double() for n in (4, 5))
    weights = torch.rand(2, 3, 4, 5, generator=generator) * (torch.rand(2, 3, 4, 5, generator=generator) < 0.5)
    weights[0] /= weights[0].sum(-1, keepdim=True).clamp(min=1e-9)
    weights[1, 0, 0] = 0
    kinds = {"radius": 1.0, "approximation": 2.0, "tables": 2}
    whole = aa.check_anna(weights, query, key, **kinds)
    for name in ("far", "near", "negative", "unnormalised"):
        parts = [
            [a, b, *at]
            for a in range(2)
            for b in range(3)
            for at in getattr(aa.check_anna(weights[a, b], query[a, b], key[a, b], **kinds), name).tolist()
        ]
        assert getattr(whole, name).tolist() == parts, name


def test_small_distances_between_long_vectors_are_not_lost():
    # From 26 rows torch would multiply matrices, and 1e8² swallows a distance of 1.
    query = torch.full((30, 1), 1e8, dtype=torch.float64)
    key = query + torch.arange(30, dtype=torch.float64)[:, None]
    report = aa.check_anna(torch.full((30, 30), 1 / 30), query, key, radius=1.5, approximation=2.0, tables=1)
    assert report.far.tolist() == [[i, j] for i in range(30) for j in range(4, 30)]


def test_bad_arguments_are_refused():
    x = torch.zeros(3, 2)
    y = torch.zeros(2, 3, 2)
    for weights, query, key in (((3, 3), x, x[:, :1]), ((2, 3, 3), y, y[:1]), ((3,), x[0], x), ((3, 3), x, x[0, 0])):
        with pytest.raises(InputError, match=r"\(..., queries, keys\), \(..., queries, dim\) and \(..., keys, dim\)"):
            aa.check_anna(torch.zeros(weights), query, key, radius=1.0, approximation=2.0, tables=1)
    with pytest.raises(InputError, match="weights: got"):
        aa.check_anna(torch.zeros(3, 4), x, x, radius=1.0, approximation=2.0, tables=1)
    with pytest.raises(InputError, match="approximation > 1"):
        aa.check_anna(torch.zeros(3, 3), x, x, radius=1.0, approximation=1.0, tables=1)
