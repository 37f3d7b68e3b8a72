"""For the site: every figure that has a dark variant beside it is shown in the variant of the colour scheme."""

import re
from pathlib import Path
from typing import Any

__all__ = ["on_page_markdown"]

FIGURE = re.compile(r"!\[(?P<words>[^\]]*)\]\((?P<path>[^)#]*figures/(?P<name>\w+))\.svg\)")
_FOLDER = Path(__file__).parent / "figures"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with every page."""

    def both(found: re.Match[str]) -> str:
        if not (_FOLDER / f"{found['name']}_dark.svg").exists():
            return found[0]
        light = f"![{found['words']}]({found['path']}.svg#only-light)"
        return f"{light}![{found['words']}]({found['path']}_dark.svg#only-dark)"

    return FIGURE.sub(both, markdown)
