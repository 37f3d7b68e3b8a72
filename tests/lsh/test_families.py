import itertools
import math

import pytest
import torch

from annattn.errors import InputError
from annattn.lsh import FAMILIES, CrossPolytope, Euclidean, HashFamily, Hyperplane, Identity
from annattn.lsh.cross_polytope_probability import gaussian_probability, rotation_probability
from tests.strategies import families

CASES = [family for dim in (3, 16, 24) for family in families(dim)]
DISTANCES = (0.0, 0.1, 0.3, 0.7, 1.0, 1.4, 1.9)


def pair_at(distance: float, dim: int, seed: int) -> torch.Tensor:
    """Two unit vectors this far apart."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, dim, generator=generator, dtype=torch.float64)
    x = x / x.norm()
    y = y - (y @ x) * x
    angle = 2 * math.asin(distance / 2)
    return torch.stack([x, math.cos(angle) * x + math.sin(angle) * y / y.norm()])


@pytest.mark.slow
@pytest.mark.parametrize("family", CASES, ids=repr)
def test_measured_collision_rate_is_the_stated_probability(family: HashFamily):
    pairs, functions = 8, 2500
    for distance in DISTANCES:
        rows = torch.stack([pair_at(distance, family.dim, seed) for seed in range(pairs)])
        if distance == 0:
            rows[:, 1] = rows[:, 0]
        digits = family.sample(tables=functions, hashes=1, seed=int(distance * 10)).digits(rows)
        rate = (digits[:, 0] == digits[:, 1]).all(-1).double().mean().item()
        stated = family.collision_probability(distance)
        # Five standard deviations of a mean of independent trials, and a floor for rare events.
        margin = 5 * math.sqrt(stated * (1 - stated) / (pairs * functions)) + 10 / (pairs * functions)
        assert abs(rate - stated) <= (margin if 0 < stated < 1 else 0), (distance, rate, stated)


@pytest.mark.slow
@pytest.mark.parametrize("family", CASES, ids=repr)
def test_collision_probability_falls_from_one_with_the_distance(family: HashFamily):
    stated = [family.collision_probability(distance / 20) for distance in range(41)]
    assert stated[0] == 1
    assert all(0 <= p <= 1 for p in stated)
    assert all(later <= earlier + 1e-6 for earlier, later in itertools.pairwise(stated))


def test_hyperplane_and_euclidean_have_their_textbook_values():
    assert Hyperplane(8).collision_probability(1.0) == pytest.approx(2 / 3)  # 60 degrees
    # Datar et al. 2004, by numerical integration of the density of |a·(x−y)|.
    width, distance = 4.0, 1.7
    steps = torch.linspace(0, width, 200_001, dtype=torch.float64)
    density = 2 * torch.exp(-((steps / distance) ** 2) / 2) / (distance * math.sqrt(2 * math.pi))
    integral = torch.trapezoid(density * (1 - steps / width), steps).item()
    assert Euclidean(8, width).collision_probability(distance) == pytest.approx(integral, abs=1e-9)


@pytest.mark.slow
def test_cross_polytope_has_its_known_special_cases():
    # On one axis it is a hyperplane. On two, a rotation by θ leaves a quadrant with probability 2θ/π; a Gaussian
    # matrix agrees with the two-dimensional integral taken here by simulation with half a million draws.
    assert gaussian_probability(1, 0.3) == pytest.approx(1 - math.acos(0.3) / math.pi)
    generator = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, 500_000, 2, generator=generator, dtype=torch.float64)
    w = 0.5 * u + math.sqrt(0.75) * v
    axis, other = u.abs().argmax(1), w.abs().argmax(1)
    same_sign = u.gather(1, axis[:, None])[:, 0] * w.gather(1, other[:, None])[:, 0] > 0
    rate = ((axis == other) & same_sign).double().mean().item()
    assert gaussian_probability(2, 0.5) == pytest.approx(rate, abs=5 * 0.5 / math.sqrt(500_000))
    # Many axes: Andoni et al. 2015, ln(1/p) = τ²/(4−τ²)·ln d + O(ln ln d).
    for distance in (0.5, 1.0):
        leading = distance**2 / (4 - distance**2) * math.log(4096)
        cosine = 1 - distance**2 / 2
        assert -math.log(rotation_probability(4096, cosine)) == pytest.approx(leading, abs=math.log(math.log(4096)))


@pytest.mark.slow
def test_dense_and_structured_rotations_state_different_probabilities():
    dense, structured = CrossPolytope(16), CrossPolytope(16, rotation="structured")
    assert dense.collision_probability(1.0) - structured.collision_probability(1.0) > 0.01


@pytest.mark.parametrize("family", families(16), ids=repr)
def test_sensitivity_and_quality_follow_from_the_collision_probability(family: HashFamily):
    found = family.sensitivity(0.2, 5)
    assert (found.radius, found.far) == (0.2, 1.0)
    assert found.p1 == family.collision_probability(0.2)
    assert found.p2 == family.collision_probability(1.0)
    if found.p2 > 0:
        assert family.quality(0.2, 5) == pytest.approx(math.log(1 / found.p1) / math.log(1 / found.p2))
        assert 0 < family.quality(0.2, 5) < 1


def test_identity_is_perfect():
    assert Identity(4).quality(0.0, 2.0) == 0


@pytest.mark.parametrize("make", FAMILIES.values())
@pytest.mark.parametrize("dim", [0, -1, 2.5, True, "3"])
def test_a_dimension_must_be_a_positive_integer(make, dim):
    with pytest.raises(InputError, match=r"dim: got .*, expected an integer of at least 1"):
        make(dim)


@pytest.mark.parametrize("family", families(4), ids=repr)
def test_bad_arguments_are_named(family: HashFamily):
    for bad in (0, -3, 1.5, True):
        with pytest.raises(InputError, match="tables"):
            family.sample(tables=bad, hashes=1)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InputError, match="hashes"):
            family.sample(tables=1, hashes=bad)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="seed"):
        family.sample(tables=1, hashes=1, seed=-1)
    with pytest.raises(InputError, match="distance"):
        family.collision_probability(-0.1)
    with pytest.raises(InputError, match="distance"):
        family.collision_probability(math.nan)
    with pytest.raises(InputError, match="approximation"):
        family.quality(0.1, 1.0)
    with pytest.raises(InputError, match="radius"):
        family.quality(-0.1, 2.0)


def test_family_options_are_checked():
    with pytest.raises(InputError, match="width"):
        Euclidean(4, width=0)
    with pytest.raises(InputError, match="rotation"):
        CrossPolytope(4, rotation="fast")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match='use rotation="dense"'):
        CrossPolytope(15, rotation="structured")
