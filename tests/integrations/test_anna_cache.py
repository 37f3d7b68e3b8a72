"""AnnaCache in wrong and odd uses: an error that names the layer and changes nothing, or the right answer."""

import copy
import pickle
from typing import Any

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, DynamicCache, EncoderDecoderCache

from annattn.attention import AnnaConfig, CollisionSoftmaxConfig, LatestMatchConfig, WindowConfig
from annattn.errors import InputError
from annattn.integrations import huggingface
from annattn.integrations.huggingface import AnnaCache
from tests.integrations.tiny import padded, tiny_llama

convert: Any = huggingface.convert  # the type checker does not see that transformers' models generate
ANNA = AnnaConfig(tables=4, hashes=3)
HASHED = [ANNA, WindowConfig(tables=4, hashes=3, window=3), LatestMatchConfig(tables=4, hashes=3)]
by_hashed = pytest.mark.parametrize("attention", HASHED, ids=lambda config: type(config).__name__)
NEW = torch.tensor([[9], [8]])


def filled(model: Any, inputs: dict[str, torch.Tensor]) -> AnnaCache:
    cache = AnnaCache(model.config)
    with torch.no_grad():
        model(**inputs, past_key_values=cache)
    return cache


def longer(mask: torch.Tensor, by: int = 1) -> torch.Tensor:
    return torch.cat([mask, torch.ones(len(mask), by, dtype=mask.dtype)], 1)


@torch.no_grad()
def goes_on(model: Any, cache: AnnaCache, inputs: dict[str, torch.Tensor]) -> None:
    """The cache holds these inputs and nothing else: its next step is that of a full pass."""
    mask = longer(inputs["attention_mask"])
    step = model(NEW, attention_mask=mask, past_key_values=cache).logits[:, 0]
    whole = model(torch.cat([inputs["input_ids"], NEW], 1), attention_mask=mask, use_cache=False).logits[:, -1]
    torch.testing.assert_close(step, whole, rtol=1e-4, atol=1e-4)


def one_row(model: Any, cache: AnnaCache) -> None:
    model(NEW[:1], attention_mask=torch.ones(1, 13), past_key_values=cache)


def other_heads(model: Any, cache: AnnaCache) -> None:
    convert(tiny_llama(num_key_value_heads=4), model.given)(NEW, past_key_values=cache)


def other_width(model: Any, cache: AnnaCache) -> None:
    convert(tiny_llama(hidden_size=64), model.given)(NEW, past_key_values=cache)


def more_layers(model: Any, cache: AnnaCache) -> None:
    convert(tiny_llama(num_hidden_layers=4), model.given)(NEW, past_key_values=cache)


def fewer_layers(model: Any, cache: AnnaCache) -> None:
    convert(tiny_llama(num_hidden_layers=2), model.given)(NEW, past_key_values=cache)


def other_last_layer(model: Any, cache: AnnaCache) -> None:
    other = convert(tiny_llama(), model.given, layers=model.layers)
    convert(other, AnnaConfig(tables=9), layers=[2])(NEW, past_key_values=cache)


def no_mask(model: Any, cache: AnnaCache) -> None:
    model(NEW, past_key_values=cache)


def mask_of_new_tokens(model: Any, cache: AnnaCache) -> None:
    model(NEW, attention_mask=torch.ones(2, 1), past_key_values=cache)


def another_mask(model: Any, cache: AnnaCache) -> None:
    mask = longer(padded()["attention_mask"])
    mask[1, 5] = 0
    model(NEW, attention_mask=mask, past_key_values=cache)


def four_axes(model: Any, cache: AnnaCache) -> None:
    model(NEW, attention_mask=torch.ones(2, 1, 1, 7, dtype=torch.bool), past_key_values=cache)


MISUSES = {
    one_row: r"cache of layer 0: .*1 batch rows.*expected 2 batch rows",
    other_heads: r"cache of layer 0: .*4 key heads.*expected .*2 key heads",
    other_width: r"cache of layer 0: .*keys 16 .*expected .*keys 8",
    more_layers: r"a cache for 3 layers, expected a model with 4",
    fewer_layers: r"a cache for 3 layers, expected a model with 2",
    other_last_layer: r"cache of layer 2: .*expected .*tables=9",
    no_mask: r"attention mask of layer 0: .*changes which of the earlier tokens take part",
    mask_of_new_tokens: r"attention_mask: got 1 columns, expected one for each of 13 tokens",
    another_mask: r"attention mask of layer 0: .*changes which of the earlier tokens take part",
    four_axes: r"attention mask of layer 0: got 7 keys, expected one for each of 13",
}


@by_hashed
@pytest.mark.parametrize("misuse", MISUSES, ids=lambda misuse: misuse.__name__)
def test_a_misuse_is_refused_and_the_cache_is_as_it_was(attention, misuse):
    model, inputs = convert(tiny_llama(), attention), padded()
    model.given, model.layers = attention, None
    cache = filled(model, inputs)
    with pytest.raises(InputError, match=MISUSES[misuse]):
        misuse(model, cache)
    goes_on(model, cache, inputs)


@pytest.mark.parametrize("misuse", [one_row, other_heads, other_width, more_layers, fewer_layers, other_last_layer])
def test_a_layer_of_keys_and_values_before_the_hashed_ones_refuses_and_keeps_nothing(misuse):
    model, inputs = convert(tiny_llama(), ANNA, layers=[2]), padded()
    model.given, model.layers = ANNA, [2]
    cache = filled(model, inputs)
    with pytest.raises(InputError, match=r"cache"):
        misuse(model, cache)
    goes_on(model, cache, inputs)


@by_hashed
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cache: cache.crop(-13), r"tokens to crop from layer 0: got 13, expected at most the last 12"),
        (lambda cache: cache.crop(3), r"tokens_to_remove: got 3, expected at most 0; a negative number"),
        (lambda cache: cache.crop(-1.5), r"tokens_to_remove"),
        (lambda cache: cache.reorder_cache(torch.tensor([0])), r"beam_idx: got 1 rows, expected one for each of 2"),
        (lambda cache: cache.reorder_cache(torch.tensor([0, 1, 1])), r"beam_idx: got 3 rows"),
        (lambda cache: cache.reorder_cache(torch.tensor([0, 2])), r"beam_idx: got 2, expected at most 1"),
        (lambda cache: cache.reorder_cache([0, 1]), r"beam_idx: got list, expected a tensor"),
        (lambda cache: cache.batch_select_indices(torch.tensor([-1])), r"indices: got -1"),
        (lambda cache: cache.batch_select_indices(torch.tensor([False, False])), r"indices: got no rows"),
        (lambda cache: cache.batch_repeat_interleave(0), r"repeats: got 0"),
    ],
)
def test_rows_and_tokens_that_are_not_there_are_refused_and_the_cache_is_as_it_was(attention, call, message):
    model, inputs = convert(tiny_llama(), attention, layers=[0, 2]), padded()
    cache = filled(model, inputs)
    with pytest.raises(InputError, match=message):
        call(cache)
    goes_on(model, cache, inputs)


@by_hashed
def test_cropping_everything_leaves_an_empty_cache(attention):
    model, inputs = convert(tiny_llama(), attention, layers=[0, 1]), padded()
    cache = filled(model, inputs)
    cache.crop(torch.tensor(-12))  # pyright: ignore[reportArgumentType]
    assert cache.get_seq_length() == 0
    with torch.no_grad():
        model(**inputs, past_key_values=cache)
    goes_on(model, cache, inputs)


@by_hashed
def test_a_cache_is_copied_and_pickled(attention):
    model, inputs = convert(tiny_llama(), attention, layers=[0, 2]), padded()
    cache = filled(model, inputs)
    for again in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        goes_on(model, again, inputs)
    goes_on(model, cache, inputs)


@by_hashed
def test_a_mask_with_columns_for_tokens_to_come_is_taken(attention):
    model, inputs = convert(tiny_llama(), attention), padded()
    cache, mask = AnnaCache(model.config), longer(inputs["attention_mask"], 9)
    with torch.no_grad():
        model(inputs["input_ids"], attention_mask=mask, past_key_values=cache)
    goes_on(model, cache, inputs)


@pytest.mark.slow
@by_hashed
@pytest.mark.parametrize(
    "how",
    [
        {"do_sample": True, "num_return_sequences": 3},
        {"num_beams": 4, "do_sample": False, "num_return_sequences": 2},
        {"num_beams": 2, "do_sample": True, "top_k": 8},
    ],
    ids=str,
)
def test_several_sequences_from_one_prompt_are_those_of_full_passes(attention, how):
    model, inputs, found = convert(tiny_llama(), attention), padded(), []
    for options in ({"past_key_values": AnnaCache(model.config)}, {"use_cache": False}):
        torch.manual_seed(3)
        found.append(model.generate(**inputs, max_new_tokens=6, **how, **options))
    assert torch.equal(*found)


@by_hashed
def test_a_history_of_nothing_can_go_forward_only(attention):
    model, inputs = convert(tiny_llama(), attention), padded()
    cache = AnnaCache(model.config, history=0)
    with torch.no_grad():
        model(**inputs, past_key_values=cache)
    with pytest.raises(InputError, match=r"at most the last 0; AnnaCache\(model.config, history=...\) keeps more"):
        cache.crop(-1)
    goes_on(model, cache, inputs)


@pytest.mark.parametrize("history", [-1, 1.5, None])
def test_a_history_is_a_count(history):
    with pytest.raises(InputError, match="history"):
        AnnaCache(convert(tiny_llama(), ANNA).config, history=history)
    with pytest.raises(InputError, match=r"config: got LlamaForCausalLM, expected .*model.config"):
        AnnaCache(convert(tiny_llama(), ANNA))


def test_a_cache_while_training_is_refused():
    model, inputs = convert(tiny_llama(), ANNA).train(), padded()
    with pytest.raises(InputError, match=r"cache of layer 0 \(LlamaAttention\): got an AnnaCache while training"):
        model(**inputs, past_key_values=AnnaCache(model.config))
    with torch.no_grad():
        assert model(**inputs, past_key_values=AnnaCache(model.config)).logits.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("attention", HASHED[:2], ids=lambda config: type(config).__name__)
def test_a_compiled_model_steps_through_a_cache(attention):
    model, inputs = convert(tiny_llama(num_hidden_layers=1), attention), padded()
    torch.compiler.reset()
    compiled, cache = torch.compile(model, backend="eager"), AnnaCache(model.config)
    with torch.no_grad():
        compiled(**inputs, past_key_values=cache)
    goes_on(model, cache, inputs)


def test_packed_sequences_are_kept_apart_with_transformers_cache_and_refused_with_ours():
    model, tokens = convert(tiny_llama(), ANNA), torch.randint(3, 50, (1, 9))
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    apart = torch.cat([model(part, use_cache=False).logits for part in tokens.split([4, 5], 1)], 1)
    torch.testing.assert_close(model(tokens, position_ids=positions).logits, apart)
    with pytest.raises(InputError, match=r"attention mask of layer 0: got packed sequences and an AnnaCache"):
        model(tokens, position_ids=positions, past_key_values=AnnaCache(model.config))
    cache = DynamicCache()
    model(tokens, past_key_values=cache)
    with pytest.raises(InputError, match=r"attention of layer 0 \(LlamaAttention\): got position_ids that start again"):
        model(tokens[:, :3], position_ids=torch.tensor([[9, 0, 1]]), past_key_values=cache)


def tiny_bart() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 32, "vocab_size": 50, "encoder_layers": 3, "decoder_layers": 2}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_ffn_dim": 32, f"{side}_attention_heads": 4}
    model: Any = BartForConditionalGeneration(BartConfig(**sizes)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)
    return model


def test_an_encoder_decoder_model_decodes_from_two_caches_and_says_so():
    model, tokens = convert(tiny_bart(), ANNA), padded()["input_ids"]
    own = EncoderDecoderCache(AnnaCache(model.config), DynamicCache())
    found = model.generate(tokens, max_new_tokens=6, do_sample=False, past_key_values=own)
    assert torch.equal(found, model.generate(tokens, max_new_tokens=6, do_sample=False, use_cache=False))
    with pytest.raises(InputError, match=r"cache of layer 0 \(BartAttention\): got an AnnaCache for cross attention"):
        model(tokens, decoder_input_ids=tokens, past_key_values=AnnaCache(model.config))


@pytest.mark.parametrize("attention", [WindowConfig(), CollisionSoftmaxConfig(window=4)], ids=lambda one: str(one)[:6])
def test_a_window_is_refused_where_queries_and_keys_are_of_two_sequences(attention):
    with pytest.raises(InputError, match=r"attention of layer 0 \(BartAttention\).*encoder-decoder model"):
        convert(tiny_bart(), attention)
    model: Any = tiny_bart()
    huggingface.register()
    model.set_attn_implementation("anna_window")
    with pytest.raises(InputError, match=r"attention of .*BartAttention.*encoder-decoder model"):
        model(padded()["input_ids"])
