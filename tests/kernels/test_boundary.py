"""Nothing that Python can say makes a compiled kernel leave its arrays: hostile calls in a process of their own."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import annattn as aa
import annattn.kernels.ops
from annattn.errors import AnnattnError
from annattn.lsh import Hyperplane

CALLS = 400


class Hostile(Hyperplane):
    """A family that keeps none of its promises; `lie` says which."""

    lie = 0

    def evaluate(self, parameters, rows):
        digits = super().evaluate(parameters, rows)
        lies = [
            lambda: digits + 10**6,
            lambda: digits - 10**6,
            lambda: digits + 2**62,
            lambda: digits[:, :1],
            lambda: digits.repeat(1, 2),
            lambda: digits.double(),
            lambda: digits[:1].expand(2 * len(digits), -1),
        ]
        return lies[type(self).lie % len(lies)]()


def _some(random, *choices):
    return choices[random.integers(len(choices))]


def _hasher(random):
    """A hasher that was tampered with."""
    family = _some(random, Hyperplane, aa.lsh.CrossPolytope, Hostile)(8)
    hasher = family.sample(tables=int(random.integers(1, 5)), hashes=int(random.integers(1, 5)))
    if isinstance(family, Hostile):
        Hostile.lie = int(random.integers(7))
    for name in random.choice(["tables", "hashes", "buckets", "dense_buckets"], random.integers(3)):
        object.__setattr__(hasher, name, _some(random, 1, 2, 3, 64, 300))
    if random.random() < 0.3:
        (drawn,) = hasher.parameters
        smaller = _some(random, drawn[:1], drawn[..., :3], drawn.repeat(*[2] * drawn.ndim), drawn.double(), drawn[None])
        object.__setattr__(hasher, "parameters", _some(random, (smaller,), (smaller, smaller), ()))
    return hasher


def _tokens(random):
    heads, share = int(random.integers(1, 3)), int(random.integers(1, 3))
    query = torch.from_numpy(random.standard_normal((2, heads * share, random.integers(0, 40), 8))).float()
    key, value = torch.from_numpy(random.standard_normal((2, 2, heads, random.integers(0, 40), 8))).float()
    grads = [x.requires_grad_() if random.random() < 0.3 else x for x in (query, key, value)]
    return grads[0], grads[1], grads[2]


def _integers(random, *shape):
    top = _some(random, 2, 8, 100, 10**6, 2**40, 2**62)
    return torch.from_numpy(random.integers(_some(random, 0, -3, -top), top, shape))


def _call_attention(random):
    query, key, value = _tokens(random)
    hasher = _hasher(random)
    if random.random() < 0.5:
        out = aa.anna_attention(query, key, value, hasher, is_causal=bool(random.integers(2)))
    else:
        out = aa.latest_match_attention(query, key, value, hasher)
    if out.requires_grad:
        out.sum().backward()


def _call_op(random):
    """An op called by its name with numbers nobody made sure of."""
    query, key, value = (x.detach() for x in _tokens(random))
    batch, heads, n, _ = query.shape
    tables, buckets = int(random.integers(1, 5)), int(_some(random, 0, 1, 8, 2**20))
    targets = _integers(random, batch, heads, n, tables)
    sources = _integers(random, batch, _some(random, heads, key.shape[1]), _some(random, n, key.shape[2]), tables)
    order, spec = int(random.integers(-1, 2)), Hyperplane(8).sample(tables=tables, hashes=2).spec
    ops = torch.ops.annattn
    grad = torch.from_numpy(random.standard_normal((batch, heads, _some(random, n, 3), _some(random, 8, 5)))).float()
    count = torch.ones(batch, heads, n, dtype=torch.int64)
    calls = [
        lambda: ops.bucket_mean(targets, sources, value, order, buckets, bool(random.integers(2))),
        lambda: ops.bucket_sum(targets, sources, value, order, buckets, bool(random.integers(2))),
        lambda: ops.newest(targets, sources, buckets),
        lambda: ops.newest_attention(query, key, value, targets, "none", spec),
        lambda: ops.newest_attention_gradient(query, key, value, targets, grad, grad, "linear", spec),
        lambda: ops.bucket_attention_gradient(
            query, key, value, targets, sources, grad, grad, count, order, buckets, "linear", spec
        ),
        lambda: ops.equal_rows(query, key[..., : _some(random, 8, 3)]),
    ]
    calls[random.integers(len(calls))]()


KINDS = {"attention": _call_attention, "op": _call_op}


def main(kind: str, seed: int, calls: int) -> None:
    """Make hostile calls; each says its seed first, so that the last line names the one that killed the process."""
    torch.set_num_threads(1)
    for number in range(seed, seed + calls):
        sys.stdout.write(f"{kind} {number}\n")
        sys.stdout.flush()
        # Torch and NumPy judge some shapes before the library does.
        with contextlib.suppress(AnnattnError, ValueError, TypeError, IndexError, RuntimeError):
            KINDS[kind](np.random.default_rng(number))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_calls_never_crash_the_process(kind):
    crashed, seed = [], 0
    while seed < CALLS:
        code = f"from {__name__} import main; main({kind!r}, {seed}, {CALLS - seed})"
        # glibc then fills memory that is given up, and looks at the edges of what is in use.
        around = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_PERTURB_": "85", "MALLOC_CHECK_": "3"}
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=around, cwd=Path(__file__).parents[2]
        )
        if ended.returncode == 0:
            break
        assert ended.returncode < 0, ended.stderr[-2000:]
        crashed.append(ended.stdout.split()[-1])
        seed = int(crashed[-1]) + 1
    assert not crashed


def test_a_wrong_hash_value_is_named():
    Hostile.lie = 0
    query, key, value = torch.randn(3, 1, 1, 4, 8)
    with pytest.raises(aa.errors.InputError, match=r"hash value of Hostile\(dim=8\): got 100000\d, expected 0 to 1"):
        aa.anna_attention(query, key, value, Hostile(8).sample(tables=2, hashes=2))


@pytest.mark.parametrize(
    "returned", [lambda digits: None, lambda digits: digits.numpy(), lambda digits: digits.to("meta")]
)
def test_hash_values_that_are_no_tensor_here_are_named(returned, monkeypatch):
    plain = Hyperplane.evaluate
    monkeypatch.setattr(Hostile, "evaluate", lambda self, *given: returned(plain(self, *given)))
    query, key, value = torch.randn(3, 1, 1, 4, 8)
    with pytest.raises(aa.errors.InputError, match=r"evaluate of Hostile\(dim=8\): got .*, expected a tensor on cpu"):
        aa.anna_attention(query, key, value, Hostile(8).sample(tables=2, hashes=2))


@pytest.mark.parametrize("name", ["names", "named"])
def test_names_without_numbers_are_refused(name):
    wide = Hyperplane(8).sample(tables=2, hashes=70)
    cache = aa.BucketCache(wide, value_dim=3)
    cache.append(torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 3))
    saved = cache.state_dict()
    with pytest.raises(aa.errors.InputError, match="names"):
        cache.load_state_dict({**saved, name: saved[name].to("meta")})
