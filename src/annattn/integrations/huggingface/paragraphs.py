"""Paragraphs of a large text file, in an order that a seed decides, and the last twentieth of it held out."""

import gzip
import hashlib
import re
import zlib
from pathlib import Path

import numpy as np

from annattn.errors import InputError

__all__ = ["Paragraphs", "halves", "plain"]

_HELD_OUT = 0.05
_LEAST = 240  # characters
_MARKUP = (
    (re.compile(r"\{\{[^{}]*\}\}|<[^<>]*>|\[https?://\S+|'{2,}"), " "),
    (re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]"), r"\1"),
    (re.compile(r"&(?:amp;)?(?:lt|gt|quot|nbsp|mdash|ndash|amp);"), " "),
    (re.compile(r"\s+"), " "),
)


def plain(line: str) -> str:
    """A line without the marks of a wiki.

    >>> plain("'''Anarchism''' is a [[political philosophy|philosophy]] of [[freedom]].")
    'Anarchism is a philosophy of freedom.'
    """
    for pattern, instead in _MARKUP:
        line = pattern.sub(instead, line)
    return line.strip()


def halves(paragraph: str) -> tuple[str, str]:
    """Cut a paragraph at the space nearest to its middle.

    >>> halves("one two three four")
    ('one two', 'three four')
    """
    middle = len(paragraph) // 2
    spaces = [at for at, letter in enumerate(paragraph) if letter == " "]
    cut = min(spaces, key=lambda at: abs(at - middle), default=middle)
    return paragraph[:cut].strip(), paragraph[cut:].strip()


class Paragraphs:
    """The paragraphs of a text, of enwik8 as of any file with one paragraph per line."""

    def __init__(self, path: Path, *, least: int = _LEAST) -> None:
        if path.exists() and not path.is_file():  # a device may have no end
            raise InputError("text", given=f"{path}, which is no file", expected="a text file")
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                data = file.read()
        except (OSError, EOFError, zlib.error) as wrong:
            raise InputError(
                "text", given=str(path), expected="a text file that can be read", hint=str(wrong)
            ) from None
        self.sha256 = hashlib.sha256(data).hexdigest()
        lines = data.decode("utf-8", "ignore").splitlines()
        # What begins with a letter or a bold name is prose; tables, lists and headings are not.
        prose = [line for line in lines if len(line) >= least and (line[0].isalpha() or line.startswith("'''"))]
        cut = int(len(prose) * (1 - _HELD_OUT))
        self.training, self._held_out, self._least = prose[:cut], prose[cut:], least
        if len(self.training) < 2 or len(self._held_out) < 1:
            raise InputError(
                "text",
                given=f"{len(prose)} paragraphs of at least {least} characters in {path}",
                expected="at least 20",
                hint="one paragraph per line",
            )

    def batch(self, step: int, size: int, seed: int) -> list[str]:
        """The paragraphs of a training step; the same for the same numbers."""
        random = np.random.default_rng([seed, step])
        return [plain(self.training[at]) for at in random.integers(len(self.training), size=size)]

    def held_out(self, count: int, seed: int = 0) -> list[str]:
        """So many paragraphs that no training step sees, or all there are."""
        order = np.random.default_rng(seed).permutation(len(self._held_out))
        found: list[str] = []
        for at in order:
            text = plain(self._held_out[at])
            if len(text) >= self._least / 2 and " " in text:
                found.append(text)
            if len(found) == count:
                break
        return found
