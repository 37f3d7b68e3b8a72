"""ANNA inside models of transformers: masks, caches, conversion, and what is refused."""

import copy
import pickle
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM, MistralConfig, MistralForCausalLM, StaticCache

from annattn.attention import (
    AnnaConfig,
    CollisionSoftmaxConfig,
    LatestMatchConfig,
    ReformerConfig,
    SoftmaxConfig,
    WindowConfig,
    anna_attention,
)
from annattn.errors import InputError
from annattn.integrations import huggingface
from annattn.integrations.huggingface import AnnaCache, layer_attentions
from tests.integrations.tiny import padded, tiny_bert, tiny_llama

convert: Any = huggingface.convert  # the type checker does not see that transformers' models generate
ANNA = AnnaConfig(tables=4, hashes=3)
EXACT = CollisionSoftmaxConfig(tables=1, hashes=30, window=64)  # every key of these lengths is in the window
WINDOW = WindowConfig(tables=4, hashes=3, window=3)
CACHED = [ANNA, WINDOW, LatestMatchConfig(tables=4, hashes=3), EXACT]
by_cached = pytest.mark.parametrize("attention", CACHED, ids=lambda config: type(config).__name__)


def real(logits: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return logits[inputs["attention_mask"].bool()]


@pytest.mark.parametrize("exact", [EXACT, WindowConfig(window=64)], ids=lambda config: type(config).__name__)
@pytest.mark.parametrize("left", [True, False])
def test_a_window_over_everything_gives_the_logits_of_softmax(left, exact):
    inputs, model = padded(left), tiny_llama()
    expected = real(model(**inputs).logits, inputs)
    convert(model, exact)
    torch.testing.assert_close(real(model(**inputs).logits, inputs), expected)
    cached = model(**inputs, past_key_values=AnnaCache(model.config)).logits
    torch.testing.assert_close(real(cached, inputs), expected)


def test_an_encoder_with_a_window_over_everything_gives_what_softmax_gives():
    inputs, model = padded(left=False), tiny_bert()
    expected = real(model(**inputs).last_hidden_state, inputs)
    torch.testing.assert_close(real(convert(model, EXACT)(**inputs).last_hidden_state, inputs), expected)


def test_a_layer_calls_anna_attention_with_the_models_heads_and_mask(monkeypatch):
    model, inputs = tiny_llama(num_hidden_layers=1), padded()
    convert(model, ANNA)
    seen = {}
    projection = model.model.layers[0].self_attn.o_proj
    projection.register_forward_pre_hook(lambda module, args: seen.update(out=args[0]))
    bound = model.model.layers[0].self_attn._annattn_bound[2]
    inner = bound.attend

    def spy(query, key, value, is_causal, mask):
        seen.update(query=query, key=key, value=value, is_causal=is_causal, mask=mask)
        return inner(query, key, value, is_causal, mask)

    monkeypatch.setattr(bound, "attend", spy)
    model(**inputs, use_cache=False)
    assert seen["is_causal"] is True
    assert torch.equal(seen["mask"], inputs["attention_mask"].bool())
    hasher = ANNA.hasher(8, 0, None)
    out = anna_attention(seen["query"], seen["key"], seen["value"], hasher, is_causal=True, key_mask=seen["mask"])
    assert seen["key"].shape[1] == 2
    torch.testing.assert_close(seen["out"], out.transpose(1, 2).flatten(2))


def test_padding_changes_nothing():
    model, inputs = convert(tiny_llama(), ANNA), padded()
    alone = model(inputs["input_ids"][:1, 4:], position_ids=torch.arange(4, 12)[None]).logits
    positions = torch.arange(12)[None].expand(2, -1)
    together = model(**inputs, position_ids=positions).logits
    torch.testing.assert_close(together[:1, 4:], alone)


@pytest.mark.slow
@by_cached
@pytest.mark.parametrize("layers", [None, [1]], ids=["all layers", "one layer"])
@pytest.mark.parametrize(
    "how",
    [{"do_sample": False}, {"do_sample": True, "top_k": 10}, {"num_beams": 3, "do_sample": False}],
    ids=["greedy", "sampled", "beams"],
)
def test_generation_from_the_cache_is_that_of_full_forward_passes(attention, layers, how):
    model, inputs = convert(tiny_llama(), attention, layers=layers), padded()
    found = []
    for options in ({"past_key_values": AnnaCache(model.config)}, {"use_cache": False}):
        torch.manual_seed(3)
        found.append(model.generate(**inputs, max_new_tokens=10, **how, **options))
    assert torch.equal(*found)
    assert len(set(found[0][:, 12:].flatten().tolist())) > 1  # one token over and over would prove nothing


@by_cached
def test_prompt_lookup_from_the_cache_is_greedy_generation(attention, monkeypatch):
    model = convert(tiny_llama(), attention)
    tokens = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7]])
    cache = AnnaCache(model.config)
    cropped = []
    crop = cache.crop
    monkeypatch.setattr(cache, "crop", lambda n: (cropped.append(n), crop(n))[1])
    found = model.generate(tokens, max_new_tokens=16, prompt_lookup_num_tokens=3, past_key_values=cache)
    assert torch.equal(found, model.generate(tokens, max_new_tokens=16, do_sample=False, use_cache=False))
    assert any(cropped), "no draft was rejected, so nothing was tested"


def test_a_cached_step_equals_the_full_pass_in_logits():
    model, inputs = convert(tiny_llama(), ANNA), padded()
    cache, tokens, mask = AnnaCache(model.config), inputs["input_ids"], inputs["attention_mask"]
    whole = model(**inputs, use_cache=False).logits
    model(tokens[:, :7], attention_mask=mask[:, :7], past_key_values=cache)
    for at in range(7, 12):
        step = model(tokens[:, at : at + 1], attention_mask=mask[:, : at + 1], past_key_values=cache).logits
        # Positions are counted from the cache here, and from the first token there.
        torch.testing.assert_close(step[:, 0], whole[:, at])
    assert cache.get_seq_length() == 12


def test_the_tables_of_a_cache_do_not_grow_with_the_context():
    model = convert(tiny_llama(num_hidden_layers=1), ANNA)
    cache = AnnaCache(model.config)
    sizes = []
    for _ in range(4):
        model(torch.randint(3, 50, (1, 200)), past_key_values=cache)
        layer: Any = cache.layers[0]
        sizes.append(layer.state.nbytes)
    assert sizes[1] == sizes[3]


def test_a_cache_can_be_reset_repeated_and_cut_to_some_rows():
    model, inputs = convert(tiny_llama(), ANNA), padded()
    cache = AnnaCache(model.config)
    first = model(**inputs, past_key_values=cache).logits
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(model(**inputs, past_key_values=cache).logits, first)
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([2, 3]))
    token, mask = torch.tensor([[9], [9]]), torch.ones(2, 13)
    step = model(token, attention_mask=mask, past_key_values=cache).logits
    assert torch.equal(step[0], step[1])
    whole = model(torch.cat([inputs["input_ids"][1:], token[:1]], 1), use_cache=False).logits
    torch.testing.assert_close(step[0, 0], whole[0, -1])


def test_chosen_heads_are_hashed_and_the_others_are_not():
    model, inputs = tiny_llama(num_hidden_layers=1), padded()
    attended = []
    model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda module, args: attended.append(args[0]))
    for change in ({}, {"attention": ANNA}, {"attention": ANNA, "heads": [1, 2]}):
        convert(convert(model), **change)
        model(**inputs, use_cache=False)
    dense, hashed, mixed = (real(out, inputs).unflatten(-1, (4, 8)) for out in attended)
    torch.testing.assert_close(mixed[:, [0, 3]], dense[:, [0, 3]])
    torch.testing.assert_close(mixed[:, [1, 2]], hashed[:, [1, 2]])
    assert not torch.allclose(dense[:, 1], hashed[:, 1])
    found = model.generate(**inputs, max_new_tokens=5, do_sample=False, past_key_values=AnnaCache(model.config))
    assert torch.equal(found, model.generate(**inputs, max_new_tokens=5, do_sample=False, use_cache=False))


def test_conversion_survives_saving_and_loading(tmp_path):
    model, inputs = tiny_llama(), padded()
    convert(model, ANNA, layers=[0])
    convert(model, AnnaConfig(tables=2, hashes=2, seed=5), layers=[2], heads=[3])
    model.save_pretrained(tmp_path)
    loaded: Any = LlamaForCausalLM.from_pretrained(tmp_path)
    assert layer_attentions(loaded.config) == layer_attentions(model.config)
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    assert set(layer_attentions(loaded.config) or ()) == {0, 2}


def test_conversion_survives_copying_and_pickling():
    model, inputs = convert(tiny_llama(), ANNA), padded()
    expected = model(**inputs).logits
    assert torch.equal(copy.deepcopy(model)(**inputs).logits, expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(**inputs).logits, expected)


def test_converting_back_gives_softmax_again():
    model, inputs = tiny_llama(), padded()
    expected = real(model(**inputs).logits, inputs)
    assert not torch.allclose(real(convert(model, ANNA)(**inputs).logits, inputs), expected)
    torch.testing.assert_close(real(convert(model)(**inputs).logits, inputs), expected)


def test_a_model_that_was_converted_back_is_saved_without_a_trace(tmp_path):
    model = convert(convert(tiny_llama(), ANNA))
    assert model.config._attn_implementation == "sdpa"
    model.save_pretrained(tmp_path)
    assert "ann" not in (tmp_path / "config.json").read_text()
    convert(model, ANNA, layers=[1]).save_pretrained(tmp_path)
    loaded: Any = LlamaForCausalLM.from_pretrained(tmp_path)
    assert convert(loaded).config._attn_implementation == "sdpa"
    assert layer_attentions(loaded.config) is None


def test_the_name_alone_converts_every_layer():
    huggingface.register()
    model, inputs = tiny_llama(), padded()
    model.set_attn_implementation("anna")
    by_name = model(**inputs).logits
    assert torch.equal(convert(tiny_llama(), huggingface.IMPLEMENTATIONS["anna"])(**inputs).logits, by_name)
    found = model.generate(**inputs, max_new_tokens=5, do_sample=False, past_key_values=AnnaCache(model.config))
    assert torch.equal(found, model.generate(**inputs, max_new_tokens=5, do_sample=False, use_cache=False))


def test_layers_and_heads_that_are_not_named_keep_what_they_had():
    huggingface.register()
    model = tiny_llama()

    def recorded() -> dict[int, Any]:
        return layer_attentions(model.config) or {}

    model.set_attn_implementation("anna_window")
    convert(model, ANNA, layers=[1])
    other = huggingface.IMPLEMENTATIONS["anna_window"]
    kept = {layer: (chosen.attention, chosen.heads) for layer, chosen in recorded().items()}
    assert kept == {0: (other, None), 1: (ANNA, None), 2: (other, None)}
    convert(model)
    for heads, expected in (([1], (1,)), ([0, 1], (0, 1)), ([2, 3], None)):
        convert(model, ANNA, layers=[2], heads=heads)
        assert recorded()[2].heads == expected
    convert(model, layers=[2], heads=[3])
    assert recorded()[2].heads == (0, 1, 2)
    with pytest.raises(InputError, match=r"heads of layer 2.*one description per layer"):
        convert(model, WINDOW, layers=[2], heads=[3])
    convert(model, layers=[2], heads=[0, 1, 2, 3])
    assert recorded() == {}


def test_another_name_replaces_a_conversion_and_its_own_brings_it_back(tmp_path):
    model, inputs = convert(tiny_llama(), ANNA, layers=[1]), padded()
    converted = model(**inputs).logits
    model.set_attn_implementation("anna_window")
    by_name = model(**inputs).logits
    assert torch.equal(by_name, convert(tiny_llama(), huggingface.IMPLEMENTATIONS["anna_window"])(**inputs).logits)
    assert all(type(layer).__name__ == "WindowLayer" for layer in AnnaCache(model.config).layers)
    model.set_attn_implementation("anna")
    assert torch.equal(model(**inputs).logits, converted)
    model.save_pretrained(tmp_path)
    loaded: Any = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="anna_window")
    assert torch.equal(loaded(**inputs).logits, by_name)


def test_a_converted_model_trains():
    model, inputs = convert(tiny_llama(), ANNA).train(), padded()
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.slow
@pytest.mark.parametrize("attention", [ANNA, EXACT], ids=lambda config: type(config).__name__)
def test_a_converted_model_compiles_into_one_graph(attention):
    model, inputs = convert(tiny_llama(), attention), padded()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs, use_cache=False).logits, model(**inputs, use_cache=False).logits)


def test_a_mask_of_keys_in_four_axes_is_a_mask_of_keys():
    model, inputs = convert(tiny_llama(), ANNA), padded()
    expected = model(**inputs, use_cache=False, position_ids=torch.arange(12)[None]).logits
    keep = inputs["attention_mask"].bool()[:, None, None]
    added = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
    for mask in (keep, added):
        found = model(inputs["input_ids"], attention_mask=mask, use_cache=False, position_ids=torch.arange(12)[None])
        assert torch.equal(found.logits, expected)


def test_arbitrary_masks_are_refused_by_the_layers_name():
    model, inputs = convert(tiny_llama(), ANNA), padded()
    for mask in (torch.ones(2, 1, 12, 12, dtype=torch.bool).tril(), torch.full((2, 1, 1, 12), 0.5)):
        with pytest.raises(InputError, match=r"attention mask of layer 0 \(LlamaAttention\)"):
            model(inputs["input_ids"], attention_mask=mask)


def test_a_cache_of_another_configuration_is_refused_by_the_layers_name():
    model, inputs = convert(tiny_llama(), ANNA), padded()
    cache = AnnaCache(model.config)
    convert(model, AnnaConfig(tables=5, hashes=3))
    with pytest.raises(InputError, match=r"cache of layer 0: .*tables=4.*tables=5"):
        model(**inputs, past_key_values=cache)
    with pytest.raises(InputError, match="AnnaCache or a DynamicCache"):
        model(**inputs, past_key_values=StaticCache(model.config, max_cache_len=32))
    with pytest.raises(InputError, match="a converted one"):
        AnnaCache(tiny_llama().config)
    plain = tiny_llama()
    with pytest.raises(InputError, match="attention of layer 0"):
        plain.generate(**inputs, max_new_tokens=3, past_key_values=AnnaCache(model.config))


def test_an_ordinary_cache_works_too():
    model, inputs = convert(tiny_llama(), ANNA), padded()
    found = model.generate(**inputs, max_new_tokens=5, do_sample=False, past_key_values=DynamicCache())
    assert torch.equal(found, model.generate(**inputs, max_new_tokens=5, do_sample=False, use_cache=False))


def test_a_mechanism_without_the_models_order_is_refused_before_anything_changes():
    model = tiny_llama()
    with pytest.raises(InputError, match=r"layer 1 \(LlamaAttention\).*no causal form"):
        convert(model, ReformerConfig(), layers=[1])
    with pytest.raises(InputError, match=r"layer 0 \(BertSelfAttention\).*only a causal form"):
        convert(tiny_bert(), LatestMatchConfig())
    assert layer_attentions(model.config) is None
    assert model.config._attn_implementation == "sdpa"


def test_a_model_without_the_interface_is_refused():
    class Own(torch.nn.Module):
        pass

    with pytest.raises(InputError, match="a model of transformers"):
        convert(Own(), ANNA)
    model = tiny_llama()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda cls: False))
        with pytest.raises(InputError, match=r"layer 0 .*does not use the attention interface"):
            convert(model, ANNA)


@pytest.mark.parametrize(
    ("options", "named"), [({"layers": [3]}, "layers"), ({"heads": [4]}, "head"), ({"layers": [-1]}, "layer")]
)
def test_layers_and_heads_must_exist(options, named):
    with pytest.raises(InputError, match=named):
        convert(tiny_llama(), ANNA, **options)


def test_dropout_is_refused_by_the_layers_name():
    model = convert(tiny_bert(), ANNA).train()
    with pytest.raises(InputError, match=r"layer 0 \(BertSelfAttention\).*dropout"):
        model(**padded(left=False))


def test_a_damaged_record_names_its_layer():
    model = convert(tiny_llama(), SoftmaxConfig())
    model.config.annattn = {"layers": {"2": {"mechanism": "dance"}}}
    with pytest.raises(InputError, match="attention of layer 2"):
        model(**padded())


@pytest.mark.parametrize("attention", [ANNA, WINDOW], ids=lambda config: type(config).__name__)
def test_packed_sequences_do_not_see_each_other(attention):
    model, tokens = convert(tiny_llama(), attention), torch.randint(3, 50, (1, 9))
    packed = model(tokens, position_ids=torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]), use_cache=False).logits
    apart = [model(part, use_cache=False).logits for part in tokens.split([4, 5], 1)]
    torch.testing.assert_close(packed, torch.cat(apart, 1))


def test_packed_sequences_are_refused_by_the_layers_name_where_they_have_no_form():
    model = convert(tiny_llama(), LatestMatchConfig(), layers=[1])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with pytest.raises(InputError, match=r"attention of layer 1.*packed sequences"):
        model(torch.randint(3, 50, (1, 6)), position_ids=positions, use_cache=False)


def test_layers_that_keep_softmax_keep_packed_sequences_apart():
    model = tiny_llama()
    tokens, positions = torch.randint(3, 50, (1, 6)), torch.tensor([[0, 1, 2, 0, 1, 2]])
    expected = model(tokens, position_ids=positions, use_cache=False, output_hidden_states=True).hidden_states[1]
    convert(model, AnnaConfig(tables=1, hashes=1), layers=[2])
    first = model.model.layers[0].self_attn._annattn_bound[2]
    assert first.attend is None
    hidden = model(tokens, position_ids=positions, use_cache=False, output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(hidden, expected)


def test_sliding_windows_are_refused():
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 8}
    config = MistralConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, sliding_window=4)
    model = convert(MistralForCausalLM(config).eval(), ANNA)
    with pytest.raises(InputError, match=r"attention mask of (all layers|layers 0).*causal, bidirectional or packed"):
        model(torch.randint(0, 8, (1, 9)), use_cache=False)


def test_cropping_undoes_padded_tokens_too():
    model, inputs = convert(tiny_llama(), ANNA), padded()
    tokens, mask = inputs["input_ids"], inputs["attention_mask"].flip(1)  # padding at the end of the first row
    cache = AnnaCache(model.config)
    model(tokens[:, :8], attention_mask=mask[:, :8], past_key_values=cache)
    model(tokens[:, 8:], attention_mask=mask, past_key_values=cache)
    cache.crop(-4)
    step = model(tokens[:, :1], attention_mask=torch.ones(2, 9), past_key_values=cache).logits
    whole = model(torch.cat([tokens[:, :8], tokens[:, :1]], 1), use_cache=False).logits
    torch.testing.assert_close(step[:, 0], whole[:, -1])
    with pytest.raises(InputError, match="tokens to crop from layer 0"):
        cache.crop(-100)
