"""Attention over arrays in files that may be larger than memory."""

from annattn.outofcore.arrays import ArrayFile
from annattn.outofcore.attention import HASHING, MECHANISMS, attend

__all__ = ["HASHING", "MECHANISMS", "ArrayFile", "attend"]
