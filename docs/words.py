"""For the site: a line never ends inside the name of an option, or between a number and what belongs to it.

In tables it may end after the dot of a long name, so that the table fits the page.
"""

import re
from typing import Any

__all__ = ["on_page_content"]

_BLOCK = re.compile(r"(<pre.*?</pre>|<math.*?</math>)", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]*-[^<]*(?=</code>)")
_WORD = re.compile(r"\S*-\S*")
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_LONG_NAME = re.compile(r"(?<=<code>)[\w.]{25,}(?=</code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with every page."""
    parts = _BLOCK.split(html)
    parts[::2] = [_keep_together(part) for part in parts[::2]]
    return "".join(parts)


def _keep_together(html: str) -> str:
    """Text outside of blocks, with words of code whole and `± 0.1` and `5 %` on one line.

    >>> _keep_together("<code>run --facts 5</code> 0.5 ± 0.1, 5 %")
    '<code>run <span class="whole">--facts</span> 5</code> 0.5 ±&nbsp;0.1, 5&nbsp;%'
    >>> _keep_together("<td><code>annattn.attention.softmax_weights</code></td>")
    '<td><code>annattn.<wbr>attention.<wbr>softmax_weights</code></td>'
    """
    html = _CODE.sub(lambda code: _WORD.sub(r'<span class="whole">\g<0></span>', code[0]), html)
    html = _CELL.sub(lambda cell: _LONG_NAME.sub(lambda name: name[0].replace(".", ".<wbr>"), cell[0]), html)
    return re.sub(r"(?<=\d) %", "&nbsp;%", html.replace("± ", "±&nbsp;"))
