"""Position-coded values: among the keys a query meets, the latest outweighs all before it."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from annattn.errors import InputError
from annattn.lsh.rows import unit_rows

__all__ = ["LARGEST_POWER", "growth", "position_coded"]

LARGEST_POWER = 500  # of two, either way, so that squares of what is added up stay inside float64


def position_coded(
    attend: Callable[[Tensor], Tensor], value: Float[Tensor, "batch heads keys dim"], rate: float
) -> Float[Tensor, "batch heads queries dim"]:
    """Attend to 2^(rate·j)·v_j and scale what is read to length √dim, or less where less than all weight was met.

    Both are element-wise functions, so a transformer stays one in the paper's sense. At rate 1 a value weighs more than
    all values of the same length before it together. Sums are kept in float64, for its range.

    >>> import annattn as aa
    >>> x = torch.ones(1, 1, 3, 2)
    >>> v = torch.tensor([[[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]])
    >>> position_coded(lambda u: aa.exact_match_attention(x, x, u, is_causal=True), v, rate=3.0)[0, 0].round(decimals=1)
    tensor([[1.4000, 0.0000],
            [1.4000, 0.0000],
            [0.2000, 1.4000]])
    """
    grown = value * growth(rate, value.shape[2], value)
    read = attend(torch.cat([grown, torch.ones_like(grown[..., :1])], dim=-1))
    # The last channel is the weight of what was met: 1, or 0 for nothing, and between them on average.
    coded = unit_rows(read[..., :-1]) * read[..., -1:] * math.sqrt(value.shape[-1])
    return coded.to(value.dtype)


def growth(rate: float, keys: int, like: Tensor) -> Float[Tensor, "keys 1"]:
    """2^(rate·j) up to a factor that the scaling undoes; an error where that leaves float64.

    >>> growth(1.0, 2, torch.ones(1)).flatten()
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    if not 0 <= rate * keys <= 2 * LARGEST_POWER:
        raise InputError(
            "recency",
            given=rate,
            expected=f"0 to {2 * LARGEST_POWER / max(1, keys):g} for {keys} keys",
            hint="values are multiplied by 2^(rate·position), which must stay inside float64",
        )
    power = rate * (torch.arange(keys, device=like.device, dtype=torch.float64) - keys / 2)
    return torch.exp2(power)[:, None]
