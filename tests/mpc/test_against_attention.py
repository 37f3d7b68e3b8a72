"""The attention protocols give the numbers of `attention.reference`."""

import numpy as np
import pytest
import torch

from annattn.attention import reference
from annattn.attention.anna import anna_weights
from annattn.attention.exact_match import exact_match_weights
from annattn.attention.low_rank import low_rank_weights
from annattn.lsh import Hyperplane
from annattn.mpc import run
from annattn.mpc.protocols import AnnaAttention, ExactMatchAttention, LowRankAttention

N, DIM, WIDTH = 60, 5, 3


def inputs(seed: int):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, N, DIM, generator=generator, dtype=torch.float64)
    return query, key, torch.randn(N, WIDTH, generator=generator, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("on_machines", [False, True])
def test_anna_protocol_gives_the_reference_numbers(seed, on_machines):
    query, key, value = inputs(seed)
    hasher = Hyperplane(DIM).sample(tables=4, hashes=3, seed=seed)
    seen = reference.visible(N, N)
    expected = reference.attend(anna_weights(query, key, seen, hasher=hasher), value)

    def codes(rows):
        return hasher(torch.from_numpy(np.ascontiguousarray(rows))).numpy()

    hashing = {"hasher": codes, "dim": DIM} if on_machines else {}
    least = AnnaAttention.least_memory(N, tables=4, value_dim=WIDTH, dim=DIM if on_machines else None)
    protocol = AnnaAttention(N, 2 * least, tables=4, value_dim=WIDTH, **hashing)
    sides = (query.numpy(), key.numpy()) if on_machines else (codes(query.numpy()), codes(key.numpy()))
    output = run(protocol, protocol.encode(*sides, value.numpy())).output
    np.testing.assert_allclose(output, expected.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_exact_match_protocol_gives_the_reference_numbers(seed):
    query, key, value = inputs(seed)
    query, key = query.round()[:, :1], key.round()[:, :1]
    expected = reference.attend(exact_match_weights(query, key, reference.visible(N, N)), value)
    least = ExactMatchAttention.least_memory(N, dim=1, value_dim=WIDTH)
    protocol = ExactMatchAttention(N, 2 * least, dim=1, value_dim=WIDTH)
    output = run(protocol, protocol.encode(query.numpy(), key.numpy(), value.numpy())).output
    np.testing.assert_allclose(output, expected.numpy(), rtol=1e-12, atol=1e-13)


def test_low_rank_protocol_gives_the_reference_numbers():
    query, key, value = inputs(0)
    expected = reference.attend(low_rank_weights(query, key, reference.visible(N, N)), value)
    least = LowRankAttention.least_memory(N, rank=DIM, value_dim=WIDTH)
    protocol = LowRankAttention(N, 2 * least, rank=DIM, value_dim=WIDTH)
    output = run(protocol, protocol.encode(query.numpy(), key.numpy(), value.numpy())).output
    np.testing.assert_allclose(output, expected.numpy(), rtol=1e-12, atol=1e-13)
