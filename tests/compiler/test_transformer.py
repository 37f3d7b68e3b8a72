"""The transformer in the paper's sense: its layers are the attention functions between element-wise functions."""

import pytest
import torch

import annattn as aa
from annattn.compiler import Anna, Head, Layer, LowRank, Transformer
from annattn.errors import InputError


def column(*which: int):
    return lambda x: x[:, list(which)]


HEADS = [Head(column(0), column(1), column(2, 3), 1, 2), Head(column(1), column(1), column(3), 1, 1)]
RANDOM = torch.Generator().manual_seed(0)
ROWS = torch.randint(-1, 2, (12, 4), generator=RANDOM).double()


@pytest.mark.parametrize("kind", ["ema", "anna", "low rank"])
def test_a_layer_is_its_heads_side_by_side(kind):
    hasher = aa.lsh.Hyperplane(1).sample(tables=3, hashes=2)
    attend, layer = {
        "ema": (aa.exact_match_attention, Layer(HEADS)),
        "anna": (lambda q, k, v: aa.anna_attention(q, k, v, hasher), Layer(HEADS, Anna(hasher))),
        "low rank": (aa.low_rank_attention, Layer(HEADS, LowRank())),
    }[kind]
    q, k, v = ROWS[None, None, :, :1], ROWS[None, None, :, 1:2], ROWS[None, None, :, 2:]
    expected = torch.cat([attend(q, k, v)[0, 0], attend(k, k, v[..., 1:])[0, 0]], 1)
    assert torch.equal(Transformer([layer])(ROWS), expected)


def test_layers_follow_each_other_and_the_output_function_comes_last():
    first = Layer(HEADS, local=lambda x: x + 1, update=lambda x, reads: torch.cat([x[:, :1], *reads], 1))
    second = Layer([Head(column(0), column(0), column(1, 3), 1, 2)])
    both = Transformer([first, second], output=lambda x: -x)
    middle = Transformer([first])(ROWS)
    assert torch.equal(both(ROWS), -Transformer([second])(middle))
    assert both.sizes == aa.compiler.Sizes(layers=2, heads=2, query_width=1, value_width=2, nonzeros=2)


def test_a_trace_shows_what_its_tokens_held():
    model = Transformer([Layer(HEADS), Layer([HEADS[0]], local=lambda x: torch.cat([x, x], 1))], output=lambda x: 2 * x)
    trace = model.trace(ROWS, tokens=[3, 5])
    assert torch.equal(trace.output, model(ROWS))
    assert torch.equal(trace.states[0], ROWS[[3, 5]])
    assert torch.equal(2 * trace.states[2], trace.output[[3, 5]])
    assert [(step.layer, step.head) for step in trace.steps] == [(0, 0), (0, 1), (1, 0)]
    assert torch.equal(trace.steps[0].out, aa.exact_match_attention(*(
        rows[None, None] for rows in (ROWS[:, :1], ROWS[:, 1:2], ROWS[:, 2:])))[0, 0, [3, 5]])  # fmt: skip
    assert trace.nonzeros >= int(torch.count_nonzero(ROWS[:, 2:]))
    assert "token 5 after layer 2" in str(trace)


def test_leaving_out_tokens_that_match_nothing_changes_nothing():
    def apart(x):
        return (x[:, 1:2] == x[:, 0]).any(1) | (x[:, :1] == x[:, 1]).any(1), (x[:, 1:2] == x[:, 0]).any(1)

    picky = Head(column(0), column(1), column(2, 3), 1, 2, takes_part=apart)
    assert torch.equal(Transformer([Layer([picky])])(ROWS), Transformer([Layer(HEADS[:1])])(ROWS))


def test_a_function_of_the_wrong_width_is_named():
    wrong = Transformer([Layer([Head(column(0, 1), column(1), column(2), 1, 1)])])
    with pytest.raises(InputError, match=r"query of layer 0, head 0: got shape \(12, 2\), expected \(12, 1\)"):
        wrong(ROWS)


def test_without_layers_every_size_is_zero():
    assert Transformer([]).sizes == aa.compiler.Sizes(layers=0, heads=0, query_width=0, value_width=0, nonzeros=0)
