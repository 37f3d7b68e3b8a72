"""Which setting of `collision_softmax_attention` each layer of SmolLM2 should get, so that few pairs err little.

    python -m benchmarks.smollm2_layers --share 0.12

Every layer's queries, keys and values are those of softmax on enwik8's validation part. For every setting of a menu
this measures the share of the pairs it looks at and the relative squared error of its outputs, on one query in 64, and
then takes for each layer the setting with the least error + price · share, with the lowest price that keeps the mean
share. What it prints is `CHOSEN` in benchmarks/smollm2.py. It takes two minutes on one core.
"""

import argparse
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from annattn.attention import CollisionSoftmaxConfig
from annattn.attention.collision_softmax import log_meeting_probability
from benchmarks.smollm2 import LAYERS, LENGTH, MENU, load, tokens_of

ROWS = torch.arange(100, LENGTH, 64)  # behind the keys that give the centre, where all is looked at


def watched(model: Any, tokens: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of every layer, without the batch."""
    found = []

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any) -> Any:
        found.append((query[0], key[0], value[0]))
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True, scale=scaling
        )
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("watched", attend)
    AttentionMaskInterface.register("watched", sdpa_mask)
    model.set_attn_implementation("watched")
    with torch.no_grad():
        model(tokens[None], use_cache=False)
    return found


def measured(
    layer: int, query: Tensor, key: Tensor, value: Tensor, setting: CollisionSoftmaxConfig
) -> tuple[float, float]:
    """The relative squared error of one layer's outputs, and the share of the pairs looked at."""
    place, hasher = torch.arange(LENGTH), setting.hasher(query.shape[-1], layer, None)
    seen = place <= ROWS[:, None]
    sure = seen & ((place > ROWS[:, None] - setting.window) | (place < setting.first))
    error, norm, pairs = 0.0, 0.0, 0
    for head in range(len(key)):
        share = len(query) // len(key)
        q, k, v = query[head * share : (head + 1) * share, ROWS], key[head], value[head]
        scores = q @ k.mT / q.shape[-1] ** 0.5
        wanted = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        if setting.centre:
            k = k - k[setting.first : setting.first + setting.window].mean(0)
        counts = torch.zeros(scores.shape, dtype=torch.uint8)
        query_codes, key_codes = hasher(q.flatten(0, 1)).view(*q.shape[:2], -1), hasher(k)
        for table in range(hasher.tables):
            counts += query_codes[..., table, None] == key_codes[:, table]
        chosen = sure | (seen & (counts >= setting.meetings))
        cosine = torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT
        one = hasher.family.log_probability(cosine.clamp(-1, 1))
        chance = log_meeting_probability(hasher.hashes * one, hasher.tables, setting.meetings)
        logits = (scores - torch.where(sure, 0, chance)).masked_fill(~chosen, -torch.inf)
        error += (logits.softmax(-1) @ v - wanted).square().sum().item()
        norm, pairs = norm + wanted.square().sum().item(), pairs + int(chosen.sum())
    return error / norm, pairs / (int(seen.sum()) * len(query))


def choose(errors: Tensor, shares: Tensor, most: float) -> Tensor:
    """For each layer the number of a setting; (layers, settings) in."""
    low, high = 0.0, 1e3
    for _ in range(60):
        price = (low + high) / 2
        chosen = (errors + price * shares).argmin(1, keepdim=True)
        low, high = (price, high) if shares.gather(1, chosen).mean() > most else (low, price)
    return (errors + high * shares).argmin(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.12, help="of the pairs, at most, on the text it is chosen on")
    given = parser.parse_args()
    model, tokenizer = load()
    layers = watched(model, tokens_of(tokenizer, "validation"))
    found = torch.tensor(
        [[measured(n, *of, setting) for setting in MENU.values()] for n, of in enumerate(layers)]
    )  # fmt: skip
    errors, shares = found.unbind(-1)
    for name, error, share in zip(MENU, errors.mean(0).tolist(), shares.mean(0).tolist(), strict=True):
        print(f"{name:10} everywhere: {share:.1%} of the pairs, relative squared error {error:.4f}")
    chosen = choose(errors, shares, given.share)
    error, share = (x.gather(1, chosen[:, None]).mean() for x in (errors, shares))
    print(f"chosen: {share:.1%} of the pairs, relative squared error {error:.4f}")
    for number, name in enumerate(MENU):
        print(f"    {name!r}: {[layer for layer in range(LAYERS) if chosen[layer] == number]},")


if __name__ == "__main__":
    main()
