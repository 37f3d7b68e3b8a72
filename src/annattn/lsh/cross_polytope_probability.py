"""Pr that two vectors share their nearest signed axis: the collision probability of cross-polytope hashing."""

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.polynomial import chebyshev, legendre

__all__ = ["gaussian_probability", "rotation_probability"]

_DEGREE = 20
_ACCURACY = 1e-5


@lru_cache(maxsize=4096)
def gaussian_probability(axes: int, cosine: float) -> float:
    """Pr[argmax_i |U_i| = argmax_i |W_i|, same sign] for `axes` independent pairs of correlation `cosine`.

    By symmetry 2·axes times the probability that both U_1 > 0 and W_1 > 0 win, which is
    ∫∫_{u,w>0} φ(u, w) · Pr[|U| < u, |W| < w]^(axes−1) du dw with φ the density of one pair.
    """
    if cosine >= 1:
        return 1.0
    if cosine <= -1:
        return 0.0
    if axes == 1:
        return 1 - math.acos(cosine) / math.pi
    sine = math.sqrt(1 - cosine**2)
    reach = 9.0  # beyond it a standard normal has less than 1e-18 of its weight
    nodes, weights = legendre.leggauss(128)
    u = (nodes + 1) * reach / 2
    u_weights = weights * reach / 2 * np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
    # w = cosine·u + sine·t: t is independent of u, and starts where w turns positive.
    start = np.clip(-cosine * u / sine, -reach, reach)
    t = start[:, None] + (nodes + 1) * (reach - start[:, None]) / 2
    t_weights = weights * (reach - start[:, None]) / 2 * np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    w = np.maximum(cosine * u[:, None] + sine * t, 0)
    inside = _rectangle_probability(u[:, None], w, cosine)
    total = 2 * axes * float(np.sum(u_weights[:, None] * t_weights * inside ** (axes - 1)))
    return min(max(total, 0.0), 1.0)


@lru_cache(maxsize=4096)
def rotation_probability(axes: int, cosine: float) -> float:
    """The same after a uniformly random rotation, which keeps the angle instead of keeping it on average.

    Accurate to about 1e-5, and never stated smaller than that, so that no plan takes a rounding for "impossible".

    >>> rotation_probability(64, 0.5) < gaussian_probability(64, 0.5)
    True
    """
    if abs(cosine) >= 1:
        return float(cosine > 0)
    angle = math.acos(cosine)
    return min(max(float(chebyshev.chebval(2 * angle / math.pi - 1, _rotation_polynomial(axes))), _ACCURACY), 1.0)


@lru_cache(maxsize=64)
def _rotation_polynomial(axes: int) -> np.ndarray:
    """Chebyshev coefficients of `rotation_probability` as a function of the angle.

    Two Gaussian vectors of given correlation are, given the angle they happen to enclose, a uniformly rotated pair at
    that angle. So `gaussian_probability` is `rotation_probability` averaged over the sample angle, whose density is
    known; the least-squares problem that undoes the average is well conditioned (below 20 from 16 axes on).
    """
    nodes, weights = legendre.leggauss(400)
    sample_angles = (nodes + 1) * math.pi / 2
    angles = (1 - np.cos(np.linspace(0.05, math.pi - 0.05, 3 * _DEGREE // 2))) * math.pi / 2
    cosines = np.cos(angles)
    average = _sample_angle_density(axes, cosines, sample_angles) * weights
    average /= average.sum(1, keepdims=True)
    matrix = average @ chebyshev.chebvander(2 * sample_angles / math.pi - 1, _DEGREE)
    ends = chebyshev.chebvander(np.array([-1.0, 1.0]), _DEGREE)
    target = [gaussian_probability(axes, float(cosine)) for cosine in cosines]
    return np.linalg.lstsq(np.vstack([matrix, ends]), np.array([*target, 1.0, 0.0]), rcond=None)[0]


def _sample_angle_density(count: int, cosines: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Density, up to one factor per row, of the angle between two vectors of `count` normal pairs of given correlation.

    Fisher's density of the sample correlation r: (1 − r²)^((count−3)/2) · ∫_0^∞ (cosh t − ρ r)^(−count) dt.
    """
    nodes, weights = legendre.leggauss(200)
    product = cosines[:, None] * np.cos(angles)
    reach = 12 * np.sqrt((1 - product) / count) + 40 / count
    t = (nodes + 1) / 2 * reach[..., None]
    logs = -count * np.log(2 * np.sinh(t / 2) ** 2 + (1 - product)[..., None])
    largest = logs.max(-1)
    integral = np.log((np.exp(logs - largest[..., None]) * weights).sum(-1) * reach) + largest
    logs = (count - 2) * np.log(np.sin(angles)) + integral
    return np.exp(logs - logs.max(-1, keepdims=True))


def _rectangle_probability(u: np.ndarray, w: np.ndarray, cosine: float) -> np.ndarray:
    """Pr[|U| < u, |W| < w] for a pair of standard normals of this correlation.

    Plackett's identity: the derivative in the correlation is 2(φ(u, w) − φ(u, −w)); with the correlation sin(τ) the
    integrand from independence onwards is smooth.
    """
    nodes, weights = legendre.leggauss(64)
    end = math.asin(cosine)
    angles = (nodes + 1) * end / 2
    total = _central(u) * _central(w)
    for angle, weight in zip(angles, weights * end / 2, strict=True):
        spread = 2 * math.cos(angle) ** 2
        cross = 2 * u * w * math.sin(angle)
        squares = u**2 + w**2
        total = total + weight / math.pi * (np.exp(-(squares - cross) / spread) - np.exp(-(squares + cross) / spread))
    return np.clip(total, 0, 1)


def _central(x: np.ndarray) -> np.ndarray:
    """Pr[|U| < x] of a standard normal."""
    return torch.erf(torch.from_numpy(np.asarray(x)) / math.sqrt(2)).numpy()
