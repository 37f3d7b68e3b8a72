"""Random arrays, and files with them."""

import numpy as np
import torch

__all__ = ["numbers", "save"]


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def save(*leading: int, queries: int = 50, keys: int = 50, dim: int = 8, dtype="float32", key_heads: int | None = None):
    """q.npy, k.npy and v.npy in the current folder, and their arrays with the four axes the library takes."""
    fewer = leading if key_heads is None else (*leading[:-1], key_heads)
    shapes = ((*leading, queries, dim), (*fewer, keys, dim), (*fewer, keys, 5))
    arrays = [numbers(*shape, seed=at, dtype=dtype) for at, shape in enumerate(shapes)]
    for name, array in zip("qkv", arrays, strict=True):
        np.save(f"{name}.npy", array)
    query, key, value = (torch.from_numpy(x.reshape((1,) * (4 - x.ndim) + x.shape)) for x in arrays)
    return query, key, value
