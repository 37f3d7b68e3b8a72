"""The paper's equivalence as a compiler: protocols to transformers, and transformers to protocols."""

from annattn.compiler.compiled_protocol import CompiledProtocol
from annattn.compiler.mechanisms import Anna, Attention, ExactMatch, LowRank
from annattn.compiler.sizes import ValueWidths, value_widths
from annattn.compiler.to_module import to_module
from annattn.compiler.to_protocol import TransformerProtocol, to_protocol
from annattn.compiler.to_transformer import to_transformer
from annattn.compiler.transformer import ElementWise, Head, Layer, Sizes, Step, Trace, Transformer

__all__ = [
    "Anna",
    "Attention",
    "CompiledProtocol",
    "ElementWise",
    "ExactMatch",
    "Head",
    "Layer",
    "LowRank",
    "Sizes",
    "Step",
    "Trace",
    "Transformer",
    "TransformerProtocol",
    "ValueWidths",
    "to_module",
    "to_protocol",
    "to_transformer",
    "value_widths",
]
