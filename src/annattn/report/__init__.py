"""Results to one self-contained page: measure every part, and draw what was measured."""

from annattn.report.page import page
from annattn.report.results import (
    PARTS,
    PartProgress,
    Settings,
    check_writable,
    make_results,
    measure_parts,
    read_results,
    write_file,
)

__all__ = [
    "PARTS",
    "PartProgress",
    "Settings",
    "check_writable",
    "make_results",
    "measure_parts",
    "page",
    "read_results",
    "write_file",
]
