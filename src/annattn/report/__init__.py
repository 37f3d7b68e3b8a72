"""Results to one self-contained page: measure every part, and draw what was measured."""

from annattn.report.page import page
from annattn.report.results import PARTS, Order, document, measured, read_results, writable, written

__all__ = ["PARTS", "Order", "document", "measured", "page", "read_results", "writable", "written"]
