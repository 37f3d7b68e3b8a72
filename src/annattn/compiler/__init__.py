"""The equivalence as a compiler: protocols to transformers and transformers to protocols."""

from annattn.compiler.mechanisms import Anna, Attention, ExactMatch, LowRank
from annattn.compiler.transformer import ElementWise, Head, Layer, Sizes, Step, Trace, Transformer

__all__ = [
    "Anna",
    "Attention",
    "ElementWise",
    "ExactMatch",
    "Head",
    "Layer",
    "LowRank",
    "Sizes",
    "Step",
    "Trace",
    "Transformer",
]
