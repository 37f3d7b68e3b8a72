"""`Transformer.first_layers` against a model that never had more layers."""

from typing import Any

import pytest
import torch

from annattn.errors import InputError
from annattn.nn import AnnaConfig, SoftmaxConfig, Transformer, TransformerConfig


def test_it_computes_what_a_shallower_model_with_the_same_weights_does():
    places: dict[str, Any] = {"positions": "prime", "rotary": (True, False, False), "recency": (0.0, 0.5, 0.0)}
    mechanisms = (AnnaConfig(tables=4, hashes=2), SoftmaxConfig(), SoftmaxConfig(beta=3.0))
    deep = Transformer(TransformerConfig(7, 3, length=12, dim=16, attention=mechanisms, **places))
    cut: dict[str, Any] = {name: value[:2] if isinstance(value, tuple) else value for name, value in places.items()}
    shallow = Transformer(TransformerConfig(7, 3, length=12, dim=16, attention=mechanisms[:2], **cut), seed=1)
    kept = {name: weight for name, weight in deep.state_dict().items() if not name.startswith("blocks.2.")}
    shallow.load_state_dict(kept)
    tokens = torch.randint(7, (2, 12), generator=torch.Generator().manual_seed(0))
    part = deep.first_layers(2)
    torch.testing.assert_close(part(tokens), shallow(tokens), rtol=0, atol=0)
    assert part.config == shallow.config
    assert part.blocks[1].out.weight is deep.blocks[1].out.weight  # type: ignore[union-attr]
    assert deep.config.layers == 3
    assert len(deep.blocks) == 3


@pytest.mark.parametrize("count", [0, 4, 1.5])
def test_other_numbers_are_refused(count):
    model = Transformer(TransformerConfig(7, 3, length=12, dim=16, attention=(SoftmaxConfig(),) * 3))
    with pytest.raises(InputError, match="count"):
        model.first_layers(count)
