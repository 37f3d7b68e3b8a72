"""For the site: formulas between dollar signs become MathML, which browsers draw without a script or a font."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

__all__ = ["on_page_content"]

FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with every page."""
    return FORMULA.sub(
        lambda found: convert(unescape(found["tex"]).strip(), display="block" if found["tag"] == "div" else "inline"),
        html,
    )
