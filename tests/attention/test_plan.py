import math

import numpy as np
import pytest
import torch

import annattn as aa
from annattn.attention.plan import _smallest
from annattn.errors import InputError, PlanError
from annattn.lsh import CrossPolytope, Euclidean, Hyperplane, Identity


def clustered(family, n: int, radius: float, far: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys as hard as the Definition allows: pairs r apart on the sphere, others just beyond c·r."""
    generator = torch.Generator().manual_seed(seed)

    def beside(x, distance):
        y = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        y = y - (y * x).sum(-1, keepdim=True) * x
        angle = 2 * math.asin(distance / 2)
        return math.cos(angle) * x + math.sin(angle) * y / y.norm(dim=-1, keepdim=True)

    query = torch.randn(n, family.dim, generator=generator, dtype=torch.float64)
    query = query / query.norm(dim=-1, keepdim=True)
    near, beyond = beside(query[: n // 2], radius * 0.999), beside(query[n // 2 :], far * 1.001)
    return query, torch.cat([near, beyond])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "radius", "approximation"),
    [(Hyperplane(16), 0.1, 10.0), (CrossPolytope(16), 0.05, 10.0), (Euclidean(16, width=1.0), 0.05, 16.0)],
    ids=repr,
)
def test_the_failure_rate_over_200_draws_is_within_the_bound(family, radius, approximation):
    n, failure, draws = 256, 0.1, 200
    found = aa.plan(n, family, radius, approximation, failure)
    assert found.applies
    assert found.near_failure + found.far_failure <= failure
    failures = 0
    for seed in range(draws):
        query, key = clustered(family, n, radius, radius * approximation, seed)
        hasher = family.sample(tables=found.tables, hashes=found.hashes, seed=seed)
        codes_q, codes_k = hasher.joint_codes(query, key)
        counts = sum((codes_q[:, None, u] == codes_k[None, :, u]).double() for u in range(found.tables))
        assert isinstance(counts, torch.Tensor)
        weights = counts / counts.sum(1, keepdim=True).clamp(min=1)
        report = aa.check_anna(weights, query, key, radius=radius, approximation=approximation, tables=found.tables)
        failures += not report.holds
    # A rate of 0.1 over 200 draws stays below this in all but one of a million test runs.
    assert failures <= draws * failure + 5 * math.sqrt(draws * failure * (1 - failure))


def test_fewer_tables_or_hashes_than_planned_break_the_bound():
    for family, radius, approximation in [(Hyperplane(16), 0.1, 10.0), (Euclidean(4, width=2.0), 0.1, 20.0)]:
        found = aa.plan(512, family, radius, approximation)
        p1, p2 = found.p1, found.p2

        def failure(tables, hashes, p1=p1, p2=p2):
            return 512**2 * ((1 - p1**hashes) ** tables + tables * p2**hashes)

        assert failure(found.tables, found.hashes) <= 0.1
        assert failure(found.tables - 1, found.hashes) > 0.1
        better = [
            (tables, hashes)
            for hashes in range(1, 2 * found.hashes)
            for tables in range(1, found.tables * found.hashes // hashes + 1)
            if tables * hashes < found.tables * found.hashes and failure(tables, hashes) <= 0.1
        ]
        assert better == []


@pytest.mark.parametrize("failure", [0.5, 0.1, 0.001])
@pytest.mark.parametrize("n", [1, 2, 10])
@pytest.mark.parametrize(
    ("p1", "p2"), [(0.99, 0.5), (0.9, 0.1), (0.9, 0.6), (0.7, 0.01), (0.5, 0.0), (1.0, 0.3), (1.0, 0.0)]
)
def test_no_smaller_product_keeps_the_bound(n, p1, p2, failure):
    def fits(tables, hashes, slack):
        return n**2 * ((1 - p1**hashes) ** tables + tables * p2**hashes) <= failure * (1 + slack)

    tables, hashes = _smallest(n, p1, p2, failure)
    assert fits(tables, hashes, 1e-12)
    for other in range(1, min(tables * hashes, 200) + 1):
        few = np.arange(1, tables * hashes // other + 1)
        smaller = (few * other < tables * hashes) | ((few * other == tables * hashes) & (few < tables))
        assert not (fits(few, other, -1e-9) & smaller).any(), (tables, hashes, other)


def test_probabilities_too_close_to_be_told_apart_are_refused():
    with pytest.raises(PlanError, match=r"guarantee: got n = 64, c = 1, failure 0\.1, .*; take fewer tokens"):
        aa.plan(64, Hyperplane(8), 0.5, 1.0000001)


def test_a_plan_with_the_bound_ignored_does_fail():
    # The planner test above could not fail if this did not.
    family = Hyperplane(16)
    query, key = clustered(family, 256, 0.1, 1.0, seed=0)
    codes_q, codes_k = family.sample(tables=4, hashes=8, seed=0).joint_codes(query, key)
    counts = (codes_q[:, None] == codes_k[None]).sum(-1).double()
    weights = counts / counts.sum(1, keepdim=True).clamp(min=1)
    report = aa.check_anna(weights, query, key, radius=0.1, approximation=10.0, tables=4)
    assert len(report.far) > 0


def test_where_the_theorem_does_not_apply_the_plan_says_why():
    small = aa.plan(64, Hyperplane(8), 0.5, 1.5)
    assert not small.applies
    assert "c = 1.5 is not above √3" in small.caveats[0]
    assert "is not below 1/3" in small.caveats[1]
    assert small.caveats[1] in str(small)
    assert f"(here {small.tables} tables for n = 64)" in small.caveats[1]
    assert aa.plan(64, Hyperplane(8), 0.05, 10).caveats == ()


def test_the_theorems_conditions_are_root_three_and_a_third():
    between = aa.plan(64, Euclidean(8, width=4.0), 0.5, 1.9)
    assert between.approximation > math.sqrt(3)
    assert not any("√3" in caveat for caveat in between.caveats)
    assert any("1/3" in caveat for caveat in between.caveats)
    nearly = aa.plan(64, Hyperplane(8), 0.3, 3.0)
    assert 1 / 4 < nearly.quality < 1 / 3
    assert nearly.applies


def test_a_plan_remembers_what_it_was_asked_for():
    found = aa.plan(64, Hyperplane(8), 0.05, 10.0, failure=0.2)
    assert (found.n, found.radius, found.approximation, found.failure) == (64, 0.05, 10.0, 0.2)
    assert len(str(found).splitlines()) == 4


def test_perfect_hashing_needs_one_table_of_one_hash():
    found = aa.plan(1000, Identity(4), 0.0, 2.0)
    assert (found.tables, found.hashes, found.quality) == (1, 1, 0.0)
    assert found.work == 2 * 1000 * 4 * 2
    assert found.linear_memory == 2 * 1000 * 5


def exponent_of_tables(failure):
    """The exponent of N between two sizes, with the factor log(N²/η)^(1/(1−ρ)) taken out."""
    family, radius, approximation = Hyperplane(16), 0.1, 10.0
    quality = family.quality(radius, approximation)
    sizes = (2**20, 2**80)
    small, large = (aa.plan(n, family, radius, approximation, failure(n, quality)) for n in sizes)
    logs = [math.log(n**2 / failure(n, quality)) ** (1 / (1 - quality)) for n in sizes]
    return quality, math.log2(large.tables / small.tables * logs[0] / logs[1]) / 60


def test_for_a_constant_failure_tables_grow_slower_than_the_theorem_says():
    quality, grown = exponent_of_tables(lambda n, quality: 0.1)
    assert grown == pytest.approx(2 * quality / (1 - quality), abs=0.005)
    assert grown < 3 * quality - 0.02


def test_for_the_theorems_failure_tables_grow_like_the_theorem_says():
    quality, grown = exponent_of_tables(lambda n, quality: n ** -(1 - 3 * quality))
    assert grown == pytest.approx(3 * quality, abs=0.005)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n: got 0"),
        ({"failure": 0.0}, "failure: got 0.0"),
        ({"failure": 1.0}, "failure"),
        ({"radius": -1.0}, "radius"),
        ({"approximation": 1.0}, "approximation"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        aa.plan(**{"n": 64, "family": Hyperplane(4), "radius": 0.1, "approximation": 10.0, **arguments})


def test_no_plan_exists_when_near_and_far_collide_alike():
    with pytest.raises(PlanError, match="near pairs to collide more often than far ones"):
        aa.plan(64, Hyperplane(4), 2.0, 2.0)
