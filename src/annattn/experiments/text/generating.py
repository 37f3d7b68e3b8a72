"""Text byte after byte, each at the same cost."""

import codecs
from collections.abc import Iterator

import numpy as np
import torch

from annattn.checks import require_count, require_number
from annattn.errors import InputError
from annattn.experiments.text.model import TextModel
from annattn.nn.decoding import choose_token
from annattn.seeds import check_seed

__all__ = ["stream"]


def stream(
    model: TextModel, prompt: bytes, n: int, *, temperature: float = 1.0, seed: int = 0
) -> Iterator[tuple[int, str]]:
    """The next n bytes, one after the other, each with the letters that are complete with it.

    Windows and buckets are all that is remembered, so a byte costs the same, however many came before. Temperature 0
    takes the likeliest byte.

    >>> from annattn.experiments.text import TextConfig
    >>> model = TextModel(TextConfig(dim=32, layers=2, heads=2, far_layer=1)).eval()
    >>> len(list(stream(model, b"def ", 5)))
    5
    """
    n = require_count("n", n, least=0)
    require_number("temperature", temperature, "a number of at least 0", low=0)
    if not prompt:
        raise InputError("prompt", given="nothing", expected="at least one byte to begin with")
    if model.training:
        raise InputError("model", given="one in training", expected="model.eval()")
    generator = torch.Generator().manual_seed(check_seed(seed))

    def produce() -> Iterator[tuple[int, str]]:
        state, decoder = model.new_state(), codecs.getincrementaldecoder("utf-8")("replace")
        fed = torch.from_numpy(np.frombuffer(prompt, np.uint8).astype(np.int64))[None]
        for _ in range(n):
            with torch.no_grad():
                chosen = choose_token(model(fed, state)[:, -1], temperature, None, generator)
            fed = chosen[:, None]
            byte = int(chosen)
            yield byte, decoder.decode(bytes([byte]))

    return produce()
