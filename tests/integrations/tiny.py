"""Tiny models of transformers with random weights."""

from typing import Any

import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM


def tiny_llama(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "vocab_size": 50}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    config = LlamaConfig(**{**sizes, **tokens, "num_attention_heads": 4, "num_key_value_heads": 2, **options})
    model: Any = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        # The usual initialisation is so small that all tokens look alike.
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)
    return model


def tiny_bert(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 50}
    config = BertConfig(**{**sizes, "num_attention_heads": 4, **options})
    model: Any = BertModel(config, add_pooling_layer=False)
    return model.eval()


def padded(left: bool = True) -> dict[str, torch.Tensor]:
    """Two sequences, the first of them shorter."""
    tokens = torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[0, : 4 if left else 12] = 0
    if not left:
        mask[0, :8] = 1
    return {"input_ids": tokens.masked_fill(mask == 0, 0), "attention_mask": mask}
