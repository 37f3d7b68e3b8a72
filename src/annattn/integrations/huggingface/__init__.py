"""ANNA in models of Hugging Face's `transformers`: attention, mask function, decode cache and conversion.

>>> from annattn.integrations import huggingface
>>> huggingface.register()
>>> from transformers import AttentionInterface
>>> "anna" in AttentionInterface()
True
"""

from annattn.integrations.huggingface.attention import IMPLEMENTATIONS, register
from annattn.integrations.huggingface.cache import AnnaCache
from annattn.integrations.huggingface.convert import convert
from annattn.integrations.huggingface.record import layer_attentions

__all__ = ["IMPLEMENTATIONS", "AnnaCache", "convert", "layer_attentions", "register"]
