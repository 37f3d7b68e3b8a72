"""The module: hash functions as buffers, projections, training forms, caches, and everything torch does to modules."""

import copy
import io
import pickle

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import annattn as aa
from annattn.errors import InputError
from annattn.nn import AnnaAttention, TrainingSchedule
from annattn.nn.anna_attention import rotate

OPTIONS = {"kv_heads": 2, "tables": 4, "hashes": 3, "window": 6, "rotary": "near", "combine": "joined", "shift": 1}


def module(seed: int = 0, **options) -> AnnaAttention:
    torch.manual_seed(0)
    return AnnaAttention(16, 4, **{**OPTIONS, "seed": seed, **options})


def rows(batch: int = 2, n: int = 30, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, n, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rotary", ["none", "near", "all"])
@pytest.mark.parametrize(("window", "shift"), [(6, 1), (6, 0), (0, 0)])
def test_the_module_is_projections_around_the_function(rotary, window, shift):
    layer, x = module(rotary=rotary, window=window, shift=shift).eval(), rows()
    mask = torch.rand(2, 30, generator=torch.Generator().manual_seed(1)) < 0.8

    def heads(projection):
        return projection(x).reshape(2, 30, -1, 4).transpose(1, 2)

    query, key, value = heads(layer.query), heads(layer.key), heads(layer.value)
    near, places = None, torch.arange(30)
    if rotary != "none":
        near = rotate(query, places), rotate(key, places)
    if rotary == "all":
        assert near is not None
        (query, key), near = near, None
    hasher = aa.lsh.Hyperplane(4).sample(tables=4, hashes=3, seed=0, heads=2)
    if window or shift:
        gate = 0.0 if layer.gate is None else layer.gate
        read = aa.window_attention(
            query, key, value, hasher, window=window, combine="joined", shift=shift, gate=gate, near=near,
            is_causal=True, key_mask=mask,
        )  # fmt: skip
    else:
        read = aa.anna_attention(query, key, value, hasher, is_causal=True, key_mask=mask)
    expected = layer.out(read.transpose(1, 2).reshape(2, 30, 16))
    torch.testing.assert_close(layer(x, key_mask=mask), expected)


@pytest.mark.parametrize("options", [{}, {"window": 0, "shift": 0, "rotary": "all"}, {"per_head": False}], ids=str)
def test_decoding_through_a_cache_equals_the_whole(options):
    layer, x = module(**options).eval().double(), rows().double()
    mask = torch.rand(2, 30, generator=torch.Generator().manual_seed(1)) < 0.8
    expected, cache, parts, start = layer(x, key_mask=mask), layer.new_cache(batch=2), [], 0
    for size in (11, 1, 1, 7, *[1] * 10):
        here = slice(start, start + size)
        parts.append(layer(x[:, here], key_mask=mask[:, here], cache=cache))
        start += size
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    with pytest.raises(InputError, match="new_cache"):
        module(seed=5).double()(x, cache=cache)
    with pytest.raises(InputError, match="documents"):
        layer(x, cache=cache, documents=torch.tensor([0, 30]))


def test_packed_documents_are_attended_to_alone():
    layer, x = module().eval(), rows()
    out = layer(x, documents=torch.tensor([0, 12, 30]))
    torch.testing.assert_close(out, torch.cat([layer(x[:, :12]), layer(x[:, 12:])], 1))


def test_hash_functions_are_saved_loaded_and_rebuilt_by_the_seed():
    layer, x = module(seed=7).eval(), rows()
    other = module(seed=8).eval()
    expected = layer(x)
    assert not torch.equal(other(x), expected)
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer))
    assert torch.equal(other(x), expected)
    assert other.seed == 7
    assert other.hasher == layer.hasher
    other.redraw(9)
    assert not torch.equal(other(x), expected)
    other.redraw(7)
    assert torch.equal(other(x), expected)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(again(x), expected)
        again.redraw(1)
        assert not torch.equal(again(x), expected)
        assert torch.equal(layer(x), expected)


def test_the_seed_alone_rebuilds_a_module_made_without_memory():
    with torch.device("meta"):
        empty = AnnaAttention(16, 4, **OPTIONS, seed=7)  # pyright: ignore[reportArgumentType]
    made = empty.to_empty(device="cpu")
    torch.manual_seed(0)
    made.reset_parameters()
    assert all(torch.equal(a, b) for a, b in zip(made.hasher.parameters, module(seed=7).hasher.parameters, strict=True))
    assert made(rows()).isfinite().all()
    made.load_state_dict(module(seed=3).state_dict(), assign=True)
    assert torch.equal(made.eval()(rows()), module(seed=3).eval()(rows()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes_keep_the_hash_functions(dtype):
    layer = module()
    before = [x.clone() for x in layer.hasher.parameters]
    layer.to(dtype)
    assert layer.query.weight.dtype == dtype
    assert all(torch.equal(a, b) for a, b in zip(layer.hasher.parameters, before, strict=True))
    assert all(x.dtype == torch.float32 for x in layer.hasher.parameters)
    assert layer.hasher.parameters[0] is layer.get_buffer("hash_functions_0")
    if dtype == torch.float64:  # products of half precision need instructions not every machine has
        assert layer(rows().to(dtype)).dtype == dtype


def test_heads_are_drawn_apart_or_together():
    apart, together = module(), module(per_head=False)
    assert apart.hasher.heads == 2
    assert together.hasher.heads == 1
    x = torch.randn(1, 1, 20, 4).expand(1, 2, 20, 4)
    codes = apart.hasher(x)
    assert not torch.equal(codes[:, 0], codes[:, 1])
    codes = together.hasher(x)
    assert torch.equal(codes[:, 0], codes[:, 1])


@pytest.mark.parametrize("form", ["hashed", "sampled", "expected"])
def test_training_forms_train_every_parameter_and_eval_is_hashed(form):
    layer, x = module(train=form, noise=0.5), rows()
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        # A common shift of all keys turns them, so even their bias has a gradient.
        assert parameter.grad.abs().max() > 0, name
    assert torch.equal(layer.eval()(x), module().eval()(x))
    assert layer.training_cost == ("n · window" if form == "hashed" else "n² (all pairs)")


def test_at_noise_one_the_sampled_form_gives_what_hashing_gives():
    layer, x = module(train="sampled", noise=1.0), rows()
    torch.testing.assert_close(layer.train()(x), layer.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_schedule_steps_redraws_and_resumes():
    model = torch.nn.Sequential(module(), module())
    schedule = TrainingSchedule(model, expected=1, ramp=4, redraw=2, finish="sampled")
    seen = []
    for _ in range(7):
        seen.append((schedule.form, schedule.noise, model[0].seed, model[1].seed))
        schedule.step()
    assert [form for form, *_ in seen] == ["expected", *["sampled"] * 6]
    assert [noise for _, noise, *_ in seen] == [0, 0, 0.25, 0.5, 0.75, 1, 1]
    assert seen[0][2:] == (0, 0)
    assert seen[2][2] == seen[3][2] != seen[4][2]
    assert seen[2][2] != seen[2][3]
    again = TrainingSchedule(torch.nn.Sequential(module()), expected=1, ramp=4, redraw=2)
    again.load_state_dict(schedule.state_dict())
    assert again.form == "hashed"
    with pytest.raises(InputError, match="AnnaAttention"):
        TrainingSchedule(torch.nn.Linear(2, 2), expected=1, ramp=1)


def test_activation_checkpointing_gives_the_same_gradients():
    layer = module(train="sampled")
    x = rows().requires_grad_()
    plain = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    recomputed = checkpoint(lambda y: layer(y), x, use_reentrant=False)
    assert isinstance(recomputed, torch.Tensor)
    for a, b in zip(torch.autograd.grad(recomputed.square().sum(), [x, *layer.parameters()]), plain, strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["hashed", "expected"])
def test_a_training_step_compiles_into_one_graph(form):
    layer, x = module(train=form), rows()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    parameters = list(layer.parameters())
    expected = torch.autograd.grad(layer(x).square().sum(), parameters)
    for a, b in zip(torch.autograd.grad(compiled(x).square().sum(), parameters), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_heads": 3}, "heads of kv_heads"),
        ({"rotary": "yes"}, "rotary"),
        ({"family": "euclidean"}, "family"),
        ({"train": "soft"}, "train"),
        ({"is_causal": False}, "shift"),
        ({"gradient": "some"}, "gradient"),
        ({"noise": 2}, "noise"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        module(**options)


def test_modules_that_look_ahead_have_no_cache():
    layer = module(is_causal=False, shift=0)
    assert layer(rows()).shape == (2, 30, 16)
    with pytest.raises(InputError, match="a causal module"):
        layer.new_cache()
    with pytest.raises(InputError, match=r"x: got shape"):
        layer(rows()[0])


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"tables": 5}, {"window": 7}, {"combine": "gate"}, {"shift": 0}], ids=str
)
def test_a_cache_of_another_configuration_is_refused_and_keeps_nothing(other):
    given = {"window": 5, "combine": "joined", "shift": 1}
    layer, cache = module(**given), module(**given | other).new_cache(batch=2)
    with pytest.raises(InputError, match=r"cache: .*one of this module"):
        layer(rows(), cache=cache)
    assert cache.tokens == 0


def test_hash_functions_drawn_anew_in_the_middle_of_decoding_are_refused_and_the_old_ones_go_on():
    layer, x = module().eval(), rows()
    cache, whole = layer.new_cache(batch=2), layer(x)
    first = layer(x[:, :20], cache=cache)
    layer.redraw(5)
    with pytest.raises(InputError, match=r"cache: .*seed=0.*one of this module.*seed=5"):
        layer(x[:, 20:], cache=cache)
    layer.redraw(0)
    torch.testing.assert_close(torch.cat([first, layer(x[:, 20:], cache=cache)], 1), whole, rtol=1e-4, atol=1e-5)


def test_a_cache_while_training_is_refused():
    layer, x = module(), rows()
    cache = layer.new_cache(batch=2)
    with pytest.raises(InputError, match=r"cache: got one while training.*eval\(\)"):
        layer(x, cache=cache)
    assert cache.tokens == 0
    with torch.no_grad():
        torch.testing.assert_close(layer(x, cache=cache), layer(x), rtol=1e-4, atol=1e-5)


def test_a_state_of_other_tables_is_refused_and_the_hash_functions_stay():
    layer, x = module().eval(), rows()
    expected = layer.hasher(layer.key(x).unflatten(-1, (2, 4)).transpose(1, 2))
    with pytest.raises(RuntimeError, match="size mismatch for hash_functions_0"):
        layer.load_state_dict(module(seed=7, tables=5).state_dict())
    assert layer.seed == int(layer.get_buffer("hash_seed")) == 0
    assert torch.equal(layer.hasher(layer.key(x).unflatten(-1, (2, 4)).transpose(1, 2)), expected)
    assert layer.hasher == module().hasher


def test_a_state_with_the_seed_alone_draws_the_hash_functions():
    kept = {name: x for name, x in module(seed=7).state_dict().items() if "hash_functions" not in name}
    layer = module().eval()
    layer.load_state_dict(kept, strict=False)
    assert torch.equal(layer(rows()), module(seed=7).eval()(rows()))
