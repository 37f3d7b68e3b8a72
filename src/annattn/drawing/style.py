"""How charts look: by the style sheet of the page they are in, or by one of their own, light or dark."""

from html import escape
from typing import Literal

__all__ = ["Theme", "begin", "text"]

Theme = Literal["page", "light", "dark"]
"""Whose colours a chart has: those of the page it is part of, or its own, as a file that stands alone."""

_COLOURS = {
    "light": {"paper": "#ffffff", "ink": "#17181c", "soft": "#55585f", "line": "#e2e3e6", "accent": "#1f5fd6"},
    "dark": {"paper": "#1e2129", "ink": "#eceef2", "soft": "#a9adb6", "line": "#363a44", "accent": "#7fb0ff"},
}
_WARM = {"light": "#c2410c", "dark": "#ff9e66"}
_SHEET = """
svg {{ font: 12.5px system-ui, sans-serif; background: {paper}; }}
text {{ fill: {soft}; }} .axis {{ font-weight: 600; }} .cell-text {{ fill: {ink}; }}
.name {{ paint-order: stroke; stroke: {paper}; stroke-width: 3px; stroke-linejoin: round; }}
.name.accent {{ fill: {accent}; font-weight: 600; }}
.grid {{ stroke: {line}; fill: none; }} .leader {{ stroke: {line}; fill: none; }}
.line {{ fill: none; stroke: {soft}; stroke-width: 1.75; stroke-linejoin: round; }}
.line.accent {{ stroke: {accent}; stroke-width: 2.5; }}
.line.faint {{ stroke-width: 1.25; stroke-dasharray: 1 4; stroke-linecap: round; }}
.line.dashed {{ stroke-dasharray: 6 4; }}
.band {{ fill: {soft}; opacity: 0.15; }} .band.accent {{ fill: {accent}; }}
.dot {{ fill: {soft}; }} .dot.accent {{ fill: {accent}; }} .dot.faint {{ fill: {paper}; stroke: {soft}; }}
.ring {{ fill: none; stroke: {ink}; stroke-width: 1.75; }}
.frontier {{ fill: none; stroke: {accent}; stroke-width: 1.5; stroke-dasharray: 5 4; }}
.cell {{ fill: {accent}; }} .cell.warm {{ fill: {warm}; }}
"""


def begin(width: float, height: float, spoken: str, theme: Theme) -> str:
    """The opening of a chart; `spoken` is read to those who cannot see it.

    >>> begin(300, 200, "a line that rises", "page")
    '<svg class="chart" viewBox="0 0 300 200" role="img" aria-label="a line that rises">'
    >>> "<style>" in begin(300, 200, "a line that rises", "dark")
    True
    """
    size = f'class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(spoken)}"'
    if theme == "page":
        return f"<svg {size}>"
    sheet = _SHEET.format(**_COLOURS[theme], warm=_WARM[theme])
    # A width of its own, or a browser would stretch the file over the whole page.
    own = f'xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}"'
    return f"<svg {own} {size}><style>{sheet}</style>"


def text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> str:
    """Words at a place.

    >>> text(1, 2, "a < b", "end")
    '<text class="tick" x="1.0" y="2.0" text-anchor="end">a &lt; b</text>'
    """
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
