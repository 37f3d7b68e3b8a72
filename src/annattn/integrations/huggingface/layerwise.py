"""What each layer's ANNA errs by on the teacher's own inputs: one layer's error never becomes the next one's input.

A step costs little more than the teacher's forward pass, since no gradient goes through other layers, and the gradient
sees all pairs. The error of ℓ tables is that of their average plus their variance around it. The second part matters as
much as the first: attention that is right on average but seldom meets anyone is noise.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from annattn.attention import AnnaConfig
from annattn.attention.collision import expected_mean
from annattn.attention.mechanism import angular
from annattn.attention.pairs import expected_pairs
from annattn.integrations.huggingface.attention import IMPLEMENTATIONS
from annattn.integrations.huggingface.bound import bound_layer
from annattn.integrations.huggingface.convert import attention_modules, head_dim

__all__ = ["layerwise"]


@contextmanager
def layerwise(teacher: Any, student: Any, attention: AnnaConfig) -> Iterator[Any]:
    """A function of a batch's inputs that gives the mean over layers of an ANNA student's relative squared error.

    The teacher is watched and the student attends by averages until the block ends; convert the student after it.
    """
    seen: dict[int, tuple[tuple[Any, ...], dict[str, Any], Tensor]] = {}
    noise: dict[int, Tensor] = {}
    pairs = {layer: (own[0], attention_modules(student)[layer][0]) for layer, own in attention_modules(teacher).items()}
    hooks = [
        original.register_forward_hook(
            lambda _module, args, options, out, layer=layer: seen.update({layer: (args, options, out[0])}),
            with_kwargs=True,
        )
        for layer, (original, _) in pairs.items()
    ]
    for layer, (_, own) in pairs.items():
        bound = bound_layer(own, IMPLEMENTATIONS, head_dim(own))
        bound.attend = _by_averages(attention, head_dim(own), noise, layer)

    def error(inputs: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            teacher(**inputs)
        real, terms = inputs["attention_mask"].bool(), []
        for layer, (_, own) in pairs.items():
            args, options, wanted = seen[layer]
            given = own(*args, **(options | {"attention_mask": real}))[0]
            difference = (given[real] - wanted[real]).square().mean() / wanted[real].var()
            terms.append(difference + noise[layer].transpose(1, 2)[real].mean())
        return torch.stack(terms).mean()

    try:
        yield error
    finally:
        for hook in hooks:
            hook.remove()


def _by_averages(attention: AnnaConfig, dim: int, noise: dict[int, Tensor], layer: int) -> Any:
    family = angular(attention.family, dim)

    def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, mask: Tensor | None) -> Tensor:
        pairs = expected_pairs(query, key, value, family, attention.hashes, is_causal, mask)
        out = expected_mean(pairs)
        noise[layer] = pairs.variance(attention.tables) / (out.detach().var() * out.shape[-1])
        return out

    return attend
