"""For the reference: examples in docstrings (`>>>`) become blocks of code, where Markdown would see quotations."""

import re
from typing import Any

import griffe

__all__ = ["Doctests", "fenced"]


def fenced(text: str) -> str:
    """The text with every run of lines from `>>>` to the next empty line between fences."""
    return re.sub(r"^>>> .*(?:\n.+)*", lambda run: f"```pycon\n{run[0]}\n```", text, flags=re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences the examples of every docstring that is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
