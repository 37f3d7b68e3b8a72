"""Attention in pictures: softmax, expected-collision and hashed weights of a head of a trained model."""

import base64
from typing import Any

import torch
from torch import Tensor

from annattn.experiments.checkpoints import trained
from annattn.measure import Progress, silent
from annattn.nn import AttentionConfig, ExpectedCollisionConfig, SoftmaxConfig, Transformer
from annattn.report.models import hashing_of, tables_and_hashes, task_of, with_layer

__all__ = ["MODEL", "nearest_head", "pack", "pictures", "queries_and_keys", "weights_of"]

MODEL = "induction_direct"
_BETAS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def pictures(*, tokens: int = 40, seed: int = 0, progress: Progress = silent) -> dict[str, Any]:
    """Weights of every layer of the induction-heads model on one held-out word, for each number of tables and hashes.

    They are of the layer's head whose queries are nearest to a key. A layer's queries and keys are computed with the
    layers below as trained. Softmax gets the β, a power of two, whose weights are nearest to the expected ones.

    >>> found = pictures(tokens=5)
    >>> len(found["layers"]), len(found["input"])
    (2, 5)
    """
    model, task = trained(MODEL), task_of(MODEL)
    word = task.sample(1, (seed, 4), split="test")
    inputs, targets = torch.from_numpy(word.inputs)[:, :tokens], torch.from_numpy(word.targets)[:, :tokens]
    names = _names(task)
    layers = []
    for layer in range(model.config.layers):
        query, key = queries_and_keys(model.draw(seed), inputs, layer)
        head = nearest_head(query, key)
        query, key = query[:, head : head + 1], key[:, head : head + 1]
        tables, hashes = tables_and_hashes(model, layer)
        family = hashing_of(model, layer).family
        rows = []
        for at, z in enumerate(hashes):
            progress((layer + at / len(hashes)) / model.config.layers, f"layer {layer + 1}, {z} hashes")
            expected = weights_of(ExpectedCollisionConfig(family, z), query, key, layer, seed)
            beta, softmax = min(
                ((beta, weights_of(SoftmaxConfig(beta), query, key, layer, seed)) for beta in _BETAS),
                key=lambda one: _distance(one[1], expected),
            )
            row = {"expected": pack(expected), "softmax": pack(softmax), "beta": beta, "cells": []}
            for t in tables:
                other = with_layer(model, layer, t, z).draw(seed)
                weights = weights_of(other.config.attention[layer], query, key, layer, seed)
                with torch.no_grad():
                    said = other(inputs).argmax(-1)
                row["cells"].append(
                    {
                        "weights": pack(weights),
                        "distance": _distance(weights, expected),
                        "said": [names["targets"][token] for token in said[0].tolist()],
                    }
                )
            rows.append(row)
        used = hashing_of(model, layer)
        layers.append(
            {
                "head": head,
                "trained": {"tables": used.tables, "hashes": used.hashes},
                "tables": tables,
                "hashes": hashes,
                "rows": rows,
            }
        )
    return {
        "model": MODEL,
        "seed": seed,
        "input": [names["inputs"][token] for token in inputs[0].tolist()],
        "target": [names["targets"][token] for token in targets[0].tolist()],
        "layers": layers,
    }


def queries_and_keys(model: Transformer, tokens: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """The queries and keys of a layer when the model reads these tokens.

    >>> query, key = queries_and_keys(trained(MODEL), torch.full((1, 3), 2), 0)
    >>> query.shape == key.shape
    True
    """
    block: Any = model.blocks[layer]
    attend, seen = block.attend, []

    def record(query: Tensor, key: Tensor, *rest: Any) -> Tensor:
        seen[:] = [query, key]
        return attend(query, key, *rest)

    block.attend = record
    try:
        with torch.no_grad():
            model(tokens)
    finally:
        block.attend = attend
    return seen[0], seen[1]


def nearest_head(query: Tensor, key: Tensor) -> int:
    """The head whose queries have, on average, the largest cosine with a key they may see.

    >>> query = torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]]]])
    >>> nearest_head(query, torch.tensor([[[[0.0, 1.0]], [[2.0, 0.0]]]]))
    1
    """
    cosine = torch.nn.functional.normalize(query, dim=-1) @ torch.nn.functional.normalize(key, dim=-1).mT
    hidden = torch.ones(cosine.shape[-2:], dtype=torch.bool).triu(1)
    return int(cosine.masked_fill(hidden, -1).amax(-1).mean(-1)[0].argmax())


def weights_of(mechanism: AttentionConfig, query: Tensor, key: Tensor, layer: int, seed: int) -> Tensor:
    """The causal weight a mechanism gives each key: its output when value j is the j-th unit vector.

    >>> x = torch.eye(2).reshape(1, 1, 2, 2)
    >>> weights_of(SoftmaxConfig(100.0), x, x, 0, seed=0).round()
    tensor([[1., 0.],
            [0., 1.]])
    """
    keys = key.shape[2]
    units = torch.eye(keys).expand(1, key.shape[1], keys, keys)
    with torch.no_grad():
        return mechanism.bind(query.shape[-1], layer, seed)(query, key, units, True, None)[0, 0]


def pack(weights: Tensor) -> str:
    """Weights up to the diagonal, row by row, one byte per weight (255 is a weight of 1), in base64.

    >>> list(base64.b64decode(pack(torch.tensor([[1.0, 0.0], [0.2, 0.8]]))))
    [255, 51, 204]
    """
    rows, columns = torch.tril_indices(*weights.shape)
    return base64.b64encode(bytes((255 * weights[rows, columns]).round().int().tolist())).decode()


def _distance(weights: Tensor, expected: Tensor) -> float:
    """Mean total variation over the queries: 0 for equal weights, 1 for disjoint ones or for no weights at all."""
    missing = (1 - weights.sum(-1)).abs()  # a query that met no key
    return ((weights - expected).abs().sum(-1) + missing).mean().item() / 2


def _names(task: Any) -> dict[str, list[str]]:
    names = {"blank": "_", "null": "·"}
    letters = [chr(ord("a") + letter) for letter in range(task.letters)]
    targets = [""] * task.target_vocab
    for name, sign in names.items():
        targets[task.special[name]] = sign
    for at, letter in enumerate(letters):
        targets[task.special["first_letter"] + at] = letter
    hops = [str(hop) for hop in range(task.hops + 1)]
    inputs = [*targets[: task.special["zero_hops"]], *hops]
    return {"inputs": inputs, "targets": targets}
