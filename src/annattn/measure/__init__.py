"""Timing, memory and the description of a machine, for the benchmarks, `annattn bench` and `annattn demo`."""

from annattn.measure.accuracy import MATCH, Accuracy
from annattn.measure.machine import describe_machine
from annattn.measure.memory import peak_memory
from annattn.measure.progress import Progress, silent
from annattn.measure.speed import LABELS, faster_from, lengths, measure_speed
from annattn.measure.timing import exponent, median_of_blocks, median_seconds

__all__ = [
    "LABELS",
    "MATCH",
    "Accuracy",
    "Progress",
    "describe_machine",
    "exponent",
    "faster_from",
    "lengths",
    "measure_speed",
    "median_of_blocks",
    "median_seconds",
    "peak_memory",
    "silent",
]
