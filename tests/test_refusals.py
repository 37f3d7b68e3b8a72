"""What cannot work is refused in one sentence before work starts; what looks odd but can work does."""

import dataclasses
import json
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import annattn as aa
from annattn.attention import MECHANISMS
from annattn.errors import InputError
from annattn.experiments import RECIPES, Stage, read_recipe, write_recipe
from annattn.experiments.text import TextRecipe
from annattn.files import write_text
from annattn.kernels import BACKENDS, use_backend
from annattn.lsh import Euclidean, Hyperplane
from annattn.nn import AnnaAttention, AnnaConfig, SoftmaxConfig, Transformer, TransformerConfig, load_model, save_model
from annattn.nn.exact import ExactLayerConfig
from annattn.outofcore import ArrayFile
from annattn.tasks import KHop, Match2

HASHER = Hyperplane(8).sample(tables=4, hashes=3)
TOKENS = torch.arange(8)[None] % 4


def qkv(n: int = 16):
    query, key, value = torch.randn(3, 1, 2, n, 8, generator=torch.Generator().manual_seed(0))
    return query, key, value


def model_with(*attention) -> Transformer:
    return Transformer(TransformerConfig(input_vocab=4, target_vocab=2, length=8, dim=16, attention=attention))


@pytest.mark.parametrize("which", ["query", "value", "all"])
def test_sparse_and_nested_tensors_are_named(which):
    query, key, value = qkv()
    if which == "all":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.nested_tensor([torch.randn(2, 5, 8), torch.randn(2, 7, 8)])
        with pytest.raises(InputError, match="got a nested tensor, expected a dense tensor; pad"):
            aa.anna_attention(nested, nested, nested, HASHER)
        return
    given = {"query": query, "key": key, "value": value}
    given[which] = given[which].to_sparse()
    with pytest.raises(InputError, match=rf"{which}: got a tensor of layout torch.sparse_coo"):
        aa.anna_attention(given["query"], given["key"], given["value"], HASHER)


def test_a_mask_on_another_device_is_named():
    with pytest.raises(InputError, match="key_mask: got device meta"):
        aa.anna_attention(*qkv(), HASHER, key_mask=torch.ones(1, 16, dtype=torch.bool, device="meta"))


@pytest.mark.parametrize("width", ["4", True, 0, -1.0, float("nan"), None])
def test_widths_that_are_no_numbers_are_refused(width):
    with pytest.raises(InputError, match="width: got"):
        Euclidean(8, width=width)


def test_softmax_refuses_a_beta_that_its_sums_cannot_hold():
    with pytest.raises(InputError, match=r"beta: got 1e\+39"):
        aa.softmax_attention(*qkv(), beta=1e39)
    assert aa.softmax_attention(*qkv(), beta=1e38).isfinite().all()


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0)])
@pytest.mark.parametrize("attend", [
    lambda q, k, v: aa.softmax_attention(q, k, v, beta=1.0),
    lambda q, k, v: aa.anna_attention(q, k, v, HASHER),
    lambda q, k, v: aa.latest_match_attention(q, k, v, HASHER),
    lambda q, k, v: aa.exact_match_attention(q, k, v),
], ids=["softmax", "anna", "latest_match", "exact_match"])  # fmt: skip
def test_no_queries_or_no_keys_have_a_gradient_of_zero(attend, queries, keys):
    query, key, value = (torch.randn(1, 2, n, 8).requires_grad_() for n in (queries, keys, keys))
    attend(query, key, value).sum().backward()
    assert value.grad is not None
    assert not value.grad.any()


def test_an_empty_batch_has_a_gradient():
    query, key, value = torch.randn(3, 0, 2, 5, 8).requires_grad_().unbind(0)
    aa.latest_match_attention(query, key, value, HASHER).sum().backward()


@pytest.mark.parametrize("position", [1.5, -1, "0", True])
def test_positions_are_integers(position):
    with pytest.raises(InputError, match="first_position: got"):
        model_with(SoftmaxConfig())(TOKENS, first_position=position)


def test_what_a_copy_registers_stays_with_it():
    model = model_with(SoftmaxConfig())
    names = list(model.state_dict())
    copy = model.with_attention(AnnaConfig(tables=2, hashes=2))
    mlp, out = copy.get_submodule("blocks.0.mlp"), copy.get_submodule("blocks.0.out")
    copy.register_parameter("more", torch.nn.Parameter(torch.ones(1)))
    mlp.register_parameter("more", torch.nn.Parameter(torch.ones(1)))
    mlp.register_buffer("other", torch.ones(1))
    copy.register_forward_hook(lambda *_: pytest.fail("the original ran a hook of its copy"))
    out.register_forward_hook(lambda *_: pytest.fail("a layer of it did"))
    model(TOKENS)
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.head.parameters(), copy.head.parameters(), strict=True))


def test_dropout_takes_place_in_training_alone_and_differs_from_pass_to_pass():
    model = model_with(SoftmaxConfig(dropout=0.5))
    plain = model.with_attention(SoftmaxConfig())
    assert not torch.equal(model(TOKENS), model(TOKENS))
    assert torch.equal(model.eval()(TOKENS), plain(TOKENS))
    # A mechanism that comes later is trained or not as the model is.
    assert torch.equal(plain.eval().with_attention(SoftmaxConfig(dropout=0.5))(TOKENS), plain(TOKENS))


def test_a_loaded_model_has_the_hash_functions_that_were_drawn_and_the_dtype(tmp_path):
    model = model_with(AnnaConfig(tables=2, hashes=3), SoftmaxConfig())
    assert "drawn" not in json.loads((save_model(model, tmp_path / "plain")).with_suffix(".json").read_text())
    drawn = model.draw(77)
    assert torch.equal(load_model(save_model(drawn, tmp_path / "drawn"))(TOKENS), drawn(TOKENS))
    half = model.half()
    loaded = load_model(save_model(half, tmp_path / "half"))
    assert loaded.head.weight.dtype == torch.float16
    assert torch.equal(loaded(TOKENS), half(TOKENS))
    data = json.loads((tmp_path / "drawn.json").read_text())
    for wrong in ([1], "7", [1, -1], [1.5, None], {"0": 1}):
        (tmp_path / "drawn.json").write_text(json.dumps({**data, "drawn": wrong}))
        with pytest.raises(InputError, match=r"drawn of|seed"):
            load_model(tmp_path / "drawn")


@pytest.mark.parametrize("tables", [10**6, 2**31, 10**30])
def test_a_description_of_absurd_size_is_refused_before_anything_is_drawn(tmp_path, tables, monkeypatch):
    save_model(model_with(AnnaConfig(tables=2, hashes=3)), tmp_path / "m")
    data = json.loads((tmp_path / "m.json").read_text())
    data["model"]["attention"][0]["tables"] = tables
    (tmp_path / "m.json").write_text(json.dumps(data))
    monkeypatch.setattr(Hyperplane, "draw", lambda *_: pytest.fail("drawn"))
    with pytest.raises(InputError, match="tables"):
        load_model(tmp_path / "m")
    with pytest.raises(InputError, match="tables times hashes times dim"):
        Hyperplane(1024).sample(tables=tables, hashes=100)


def test_small_numpy_integers_count_as_what_they_are():
    assert Hyperplane(8).sample(tables=np.uint8(200), hashes=np.uint8(3)).parameters[0].shape == (600, 8)  # pyright: ignore
    wide = TransformerConfig(input_vocab=4, target_vocab=2, length=8, dim=np.uint8(64))  # pyright: ignore
    assert Transformer(wide).blocks[0].mlp[0].weight.shape == (256, 64)  # pyright: ignore
    cache = aa.BucketCache(HASHER, heads=np.uint8(2), batch=np.uint8(4), value_dim=np.uint8(8))  # pyright: ignore
    cache.append(torch.randn(4, 2, 5, 8), torch.randn(4, 2, 5, 8))
    assert cache.lengths == [5] * 4


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_number_of_a_description_is_a_plain_one(name):
    kind, plain = MECHANISMS[name].config, MECHANISMS[name].config()
    numbers = {f.name: getattr(plain, f.name) for f in dataclasses.fields(kind) if f.type in (int, float)}
    small = {one: np.float32(x) if isinstance(x, float) else np.int16(x) for one, x in numbers.items()}
    made = kind(**small)
    assert {type(getattr(made, one)) for one in numbers} <= {int, float}
    json.dumps(dataclasses.asdict(made))
    for one in kind.drawn:
        with pytest.raises(InputError, match=f"{one}: got 65537, expected at most 65,536"):
            kind(**{one: 2**16 + 1})
    for one in numbers:
        for wrong in (-1, "2", True, float("nan"), None, [1], 2**70):
            signed = wrong == -1 and isinstance(numbers[one], float)  # a negative beta is one
            if not signed and not (wrong == 2**70 and isinstance(numbers[one], float)):
                with pytest.raises(InputError, match=f"{one}: got"):
                    kind(**{one: wrong})


def test_recipes_count_in_plain_numbers():
    recipe = RECIPES["match2_paper"]
    stage = Stage(np.uint8(200), recipe.stages[0].attention, (np.float32(0), np.float32(1)), n=np.uint8(32))  # pyright: ignore
    made = replace(recipe, stages=(stage, stage), batch=np.uint8(32), warmup=np.int8(5), rate=np.float32(0.5))  # pyright: ignore
    assert made.steps == 400
    assert read_recipe(json.loads(json.dumps(write_recipe(made)))) == made
    text = TextRecipe("python", steps=np.uint8(200), batch=np.uint8(6), weight=np.float32(2))  # pyright: ignore
    assert json.loads(json.dumps(dataclasses.asdict(text)))["steps"] == 200
    sizes = ExactLayerConfig(np.uint8(100), np.uint8(1), np.uint8(200), np.uint8(0), (1, 20_101))  # pyright: ignore
    assert sizes.words == 200


def test_a_broken_header_and_a_circle_of_links_are_named(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 4), np.float32))
    data = bytearray(path.read_bytes())
    data[10:128] = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4".ljust(117) + b"\n"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"expected a complete \.npy file"):
        ArrayFile.open("query", path)
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(InputError, match="a link that leads back to itself"):
        write_text("x", link)
    assert {one.name for one in tmp_path.iterdir()} == {"a.npy", "link"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_default_device_changes_nothing(backend):
    query, key, value = (x.requires_grad_() for x in qkv())
    attends = [
        lambda: aa.anna_attention(query, key, value, HASHER),
        lambda: aa.anna_attention(query, key, value, HASHER, is_causal=True),
        lambda: aa.latest_match_attention(query, key, value, HASHER),
        lambda: aa.exact_match_attention(query, key, value),
    ]

    def results():
        with use_backend(backend):
            outs = [attend() for attend in attends]
            return outs + [g for out in outs for g in torch.autograd.grad(out.sum(), value)]

    expected = results()
    with torch.device("meta"):
        found = results()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_graph_of_any_length_can_be_exported():
    class Attend(torch.nn.Module):
        def forward(self, query, key, value):
            return aa.anna_attention(query, key, value, HASHER, is_causal=True)

    length = {2: torch.export.Dim("n")}
    exported = torch.export.export(Attend(), qkv(), dynamic_shapes=(length,) * 3).module()
    for n in (3, 16, 100):
        assert torch.equal(exported(*qkv(n)), Attend()(*qkv(n)))


@pytest.mark.slow
def test_attention_works_while_the_interpreter_shuts_down():
    code = """
import atexit, torch, annattn as aa
torch.set_num_threads(2)
x, hasher = torch.randn(3, 1, 4, 2048, 8), aa.lsh.Hyperplane(8).sample(tables=4, hashes=3)
atexit.register(lambda: print(aa.anna_attention(*x, hasher).shape))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "torch.Size([1, 4, 2048, 8])" in ended.stdout, ended.stderr


def test_windows_and_estimates_of_softmax_refuse_a_scale_that_float32_cannot_hold():
    for attend in (aa.window_attention, aa.collision_softmax_attention):
        with pytest.raises(InputError, match=r"scale: got 1e\+39"):
            attend(*qkv(), HASHER, window=3, scale=1e39)


@pytest.mark.parametrize("name", ["query", "key"])
def test_complex_numbers_are_refused(name):
    query, key, value = (
        x.to(torch.complex64) if name == which else x for which, x in zip(["query", "key", "value"], qkv(), strict=True)
    )
    for attend in (
        lambda: aa.collision_softmax_attention(query, key, value, HASHER, window=2),
        lambda: aa.expected_collision_attention(query, key, value, family=Hyperplane(8), hashes=2),
        lambda: aa.attention.sliding_window_attention(query, key, value, window=2),
    ):
        with pytest.raises(InputError, match=f"{name}: got torch.complex64, expected a real dtype"):
            attend()


def test_a_causal_call_without_heads_gives_nothing():
    nothing = torch.zeros(1, 0, 5, 8)
    hasher = Hyperplane(8).sample(tables=1, hashes=3)
    out = aa.attention.hyper_attention(nothing, nothing, nothing, hasher, is_causal=True, exact_below=2)
    assert out.shape == (1, 0, 5, 8)


def test_a_nested_mask_of_a_module_is_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(1, 1, 3), torch.ones(1, 1, 5)], layout=torch.strided)
    with pytest.raises(InputError, match="key_mask: got a tensor of layout"):
        AnnaAttention(8, 2)(torch.zeros(2, 5, 8), key_mask=nested)


@pytest.mark.parametrize("flag", [1, -1, "no", None])
def test_flags_are_true_or_false(flag):
    recipe = RECIPES["match2_direct"]
    for name, make in {
        "decay": lambda: replace(recipe, decay=flag),
        "with_zero": lambda: Match2(with_zero=flag),
        "repeats": lambda: KHop(repeats=flag),
        "bias": lambda: AnnaAttention(8, 2, bias=flag),
        "equal_norms": lambda: aa.attention.softmax_parameters(1.0, radius=0.5, equal_norms=flag),
        "progress": lambda: aa.mpc.run(aa.mpc.protocols.Sum(n=3, memory_words=2), [1, 2, 3], progress=flag),
    }.items():
        with pytest.raises(InputError, match=f"{name}: got {flag!r}, expected True or False"):
            make()
