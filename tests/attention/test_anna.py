from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import annattn as aa
from annattn.attention import reference
from annattn.attention.anna import anna_weights
from annattn.lsh import Hyperplane
from tests.strategies import assert_matches, attention_inputs, brute_force, hashers

DIM = 3


def counts(query, key, seen, *, hasher):
    return reference.collision_counts(query, key, hasher) * seen


def _with_ones(value):
    return value, torch.ones_like(value[..., :1]).expand_as(value)


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.data())
def test_both_algorithms_equal_the_sum_over_pairs(data):
    inputs = data.draw(attention_inputs(DIM))
    hasher = data.draw(hashers(DIM))
    # Counts times small integers are exact, so the sum over pairs, divided once, is the answer to one rounding.
    total, count = (brute_force(counts, replace(inputs, value=x), hasher=hasher) for x in _with_ones(inputs.value))
    expected = total / count.clamp(min=1)
    for algorithm in ("tables", "linear_memory", "auto"):
        out = aa.anna_attention(inputs.query, inputs.key, inputs.value, hasher, algorithm=algorithm, **inputs.masks)
        assert_matches(out, expected, inputs.value.dtype)


@pytest.mark.slow
@given(st.data())
def test_the_papers_two_algorithms_word_for_word_equal_the_sum_over_pairs(data):
    inputs = data.draw(attention_inputs(DIM))
    hasher = data.draw(hashers(DIM))
    query, key, value = inputs.query[0, 0], inputs.key[0, 0], inputs.value[0, 0]
    seen = reference.visible(len(query), len(key))
    expected = reference.attend(anna_weights(query, key, seen, hasher=hasher), value)
    torch.testing.assert_close(reference.algorithm_1(query, key, value, hasher), expected)
    torch.testing.assert_close(reference.linear_memory(query, key, value, hasher), expected)


def pairwise(query, key, value, hasher, *, is_causal, key_mask):
    """The same sum over pairs by matrices, for lengths beyond the reach of the reference's loops."""
    codes_q, codes_k = hasher.joint_codes(query, key)
    counts = (codes_q[..., :, None, :] == codes_k[..., None, :, :]).sum(-1).double()
    if is_causal:
        counts = counts.tril(key.shape[2] - query.shape[2])
    if key_mask is not None:
        counts = counts * key_mask[:, None, None]
    total = counts.sum(-1, keepdim=True)
    return (counts @ value.double()) / total.clamp(min=1)


@pytest.mark.parametrize(("queries", "keys"), [(127, 127), (128, 128), (129, 129), (300, 300), (40, 300), (300, 40)])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("algorithm", ["tables", "linear_memory"])
@pytest.mark.parametrize("hashes", [1, 4, 40])
def test_lengths_around_the_block_size_equal_the_sum_over_pairs(queries, keys, is_causal, algorithm, hashes):
    generator = torch.Generator().manual_seed(queries + keys)
    hasher = Hyperplane(4).sample(tables=5, hashes=hashes, seed=3)
    query, key = (torch.randn(2, 2, n, 4, generator=generator) for n in (queries, keys))
    value = torch.randint(-9, 10, (2, 2, keys, 3), generator=generator).float()
    mask = torch.rand(2, keys, generator=generator) < 0.7
    for key_mask in (None, mask):
        out = aa.anna_attention(query, key, value, hasher, is_causal=is_causal, key_mask=key_mask, algorithm=algorithm)
        expected = pairwise(query, key, value, hasher, is_causal=is_causal, key_mask=key_mask)
        assert_matches(out, expected, torch.float32)


@pytest.mark.parametrize("algorithm", ["tables", "linear_memory"])
def test_the_output_is_sum_over_sum_not_the_mean_of_per_table_means(algorithm):
    # Two keys share a bucket with the query in all tables, one key in some: a mean of means would weigh it more.
    hasher = Hyperplane(2).sample(tables=16, hashes=2, seed=1)
    query = torch.tensor([[[[1.0, 0.0]]]])
    key = torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]])
    value = torch.tensor([[[[0.0], [0.0], [1.0]]]])
    counts = reference.collision_counts(query[0, 0], key[0, 0], hasher)[0]
    assert counts[:2].tolist() == [16, 16]
    assert 0 < counts[2] < 16
    out = aa.anna_attention(query, key, value, hasher, algorithm=algorithm).item()
    assert out == pytest.approx(counts[2].item() / counts.sum().item(), rel=1e-6)


def test_a_query_that_meets_nothing_gets_what_the_policy_says():
    hasher = Hyperplane(2).sample(tables=4, hashes=30, seed=0)
    query, key = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[-1.0, 0.0]]]])
    value = torch.ones(1, 1, 1, 2)
    assert aa.anna_attention(query, key, value, hasher).tolist() == [[[[0.0, 0.0]]]]
    assert aa.anna_attention(query, key, value, hasher, empty="nan").isnan().all()
    met = aa.anna_attention(-query, key, value, hasher, empty="nan")
    assert met.tolist() == [[[[1.0, 1.0]]]]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["tables", "linear_memory"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_gradient_of_values_is_the_transposed_weights(algorithm, is_causal):
    generator = torch.Generator().manual_seed(0)
    hasher = Hyperplane(3).sample(tables=4, hashes=3, seed=0)
    query = torch.randn(2, 4, 9, 3, generator=generator, dtype=torch.float64)
    key = torch.randn(2, 2, 7, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, 7, generator=generator) < 0.8
    value = torch.randn(2, 2, 7, 2, generator=generator, dtype=torch.float64, requires_grad=True)

    def attend(v):
        return aa.anna_attention(query, key, v, hasher, is_causal=is_causal, key_mask=mask, algorithm=algorithm)

    assert torch.autograd.gradcheck(attend, value)


def test_results_repeat_to_the_bit_whatever_the_number_of_threads():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 3000, 8, generator=generator)
    hasher = Hyperplane(8).sample(tables=8, hashes=6, seed=0)
    threads = torch.get_num_threads()
    try:
        for is_causal in (False, True):
            results = []
            for count in (1, 2, 2):
                torch.set_num_threads(count)
                results.append(aa.anna_attention(query, key, value, hasher, is_causal=is_causal))
            assert torch.equal(results[0], results[1])
            assert torch.equal(results[1], results[2])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_accumulates_in_float32(dtype):
    hasher = Hyperplane(1).sample(tables=1, hashes=1)
    n = 4096  # in half precision a running sum of ones would stop at 2048, or at 256
    ones = torch.ones(1, 1, n, 1, dtype=dtype)
    for is_causal in (False, True):
        out = aa.anna_attention(ones, ones, ones, hasher, is_causal=is_causal)
        assert torch.equal(out, ones)
