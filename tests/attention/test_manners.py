"""What callers bring from torch's own function: taken where it means something, else an error that says what to use."""

import pytest
import torch

import annattn as aa
from annattn.errors import InputError
from annattn.lsh import Hyperplane

HASHER = Hyperplane(4).sample(tables=4, hashes=2, seed=0)


def tokens(batch: int = 2):
    query, key, value = torch.randn(3, batch, 2, 7, 4, generator=torch.Generator().manual_seed(0))
    return query, key, value, torch.arange(7) >= torch.tensor([[0], [3]])


def test_a_padding_mask_of_pairs_is_the_key_mask_it_equals():
    query, key, value, mask = tokens()
    expected = aa.anna_attention(query, key, value, HASHER, key_mask=mask)
    additive = torch.zeros(2, 1, 1, 7).masked_fill(~mask[:, None, None], -torch.inf)
    lowest = torch.zeros(2, 1, 1, 7).masked_fill(~mask[:, None, None], torch.finfo(torch.float32).min)
    for given in (mask[:, None, None], mask[:, None, None].expand(2, 2, 7, 7), additive, lowest.expand(2, 1, 7, 7)):
        assert torch.equal(aa.anna_attention(query, key, value, HASHER, attn_mask=given), expected)
        with_window = aa.window_attention(query, key, value, HASHER, window=2, attn_mask=given)
        assert torch.equal(with_window, aa.window_attention(query, key, value, HASHER, window=2, key_mask=mask))
    shared = aa.anna_attention(query, key, value, HASHER, attn_mask=mask[1][None, None, None])
    assert torch.equal(shared, aa.anna_attention(query, key, value, HASHER, key_mask=mask[1].expand(2, 7)))
    layer = aa.nn.AnnaAttention(8, 2, tables=2, hashes=2)
    x = torch.randn(2, 7, 8)
    assert torch.equal(layer(x, key_mask=mask[:, None, None]), layer(x, key_mask=mask))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attn_mask": torch.ones(1, 1, 7, 7).tril().bool()}, "is_causal=True for the order of time"),
        ({"attn_mask": torch.full((1, 1, 1, 7), 0.5)}, "there are no scores to add to"),
        ({"attn_mask": torch.ones(7, 7).bool()}, "queries or 1, keys"),
        ({"attn_mask": torch.ones(3, 1, 1, 7).bool()}, "or 1 in place of the first three"),
        ({"attn_mask": torch.ones(1, 1, 1, 7).bool(), "key_mask": torch.ones(2, 7).bool()}, "one of them"),
        ({"dropout_p": 0.1}, "apply dropout to the output"),
        ({"scale": 0.5}, "`hashes` sets how sharp it is"),
        ({"enable_gqa": True}, "key heads are always shared"),
    ],
)
def test_other_arguments_of_torch_say_what_to_use(given, message):
    query, key, value, _ = tokens()
    with pytest.raises(InputError, match=message):
        aa.anna_attention(query, key, value, HASHER, **given)


def test_harmless_and_unknown_arguments():
    query, key, value, _ = tokens()
    expected = aa.anna_attention(query, key, value, HASHER)
    out = aa.anna_attention(query, key, value, HASHER, attn_mask=None, dropout_p=0.0, scale=None)
    assert torch.equal(out, expected)
    with pytest.raises(TypeError, match="'window'"):
        aa.anna_attention(query, key, value, HASHER, window=3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_vmap_over_any_axis_equals_a_loop(is_causal):
    query, key, value = torch.randn(3, 3, 2, 2, 7, 4, generator=torch.Generator().manual_seed(0))

    def attend(q, k, v):
        return aa.anna_attention(q, k, v, HASHER, is_causal=is_causal)

    expected = torch.stack([attend(*each) for each in zip(query, key, value, strict=True)])
    assert torch.equal(torch.vmap(attend)(query, key, value), expected)
    shared = torch.stack([attend(each, key[0], value[0]) for each in query])
    assert torch.equal(torch.vmap(attend, in_dims=(0, None, None))(query, key[0], value[0]), shared)
    moved = torch.vmap(attend, in_dims=(2, 0, 0))(query.movedim(0, 2), key, value)
    assert torch.equal(moved, expected)


def test_gradients_through_vmap_equal_a_loop():
    leaves = list(torch.randn(3, 3, 1, 2, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    query, key, value = leaves = [x.requires_grad_() for x in leaves]

    def attend(q, k, v):
        return aa.anna_attention(q, k, v, HASHER, is_causal=True)

    got = torch.autograd.grad(torch.vmap(attend)(query, key, value).square().sum(), leaves)
    looped = torch.stack([attend(*each) for each in zip(query, key, value, strict=True)])
    for a, b in zip(got, torch.autograd.grad(looped.square().sum(), leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_latest_match_under_vmap_equals_a_loop():
    query, key, value = torch.randn(3, 3, 1, 2, 7, 4, generator=torch.Generator().manual_seed(0))

    def attend(q, k, v):
        return aa.latest_match_attention(q, k, v, HASHER)

    expected = torch.stack([attend(*each) for each in zip(query, key, value, strict=True)])
    assert torch.equal(torch.vmap(attend)(query, key, value), expected)
