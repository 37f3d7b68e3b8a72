"""The shapes of what attention takes and gives, named once.

Queries may have a multiple of the heads of keys and values: each key head then serves equally many query heads.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["KeyMask", "Keys", "Outputs", "Packing", "Queries", "Values"]

Queries = Float[Tensor, "batch heads queries dim"]
"""One row of `dim` numbers per batch row, head and query."""

Keys = Float[Tensor, "batch key_heads keys dim"]
"""One row per key, as wide as a query's."""

Values = Float[Tensor, "batch key_heads keys value_dim"]
"""One row per key, of any width."""

Outputs = Float[Tensor, "batch heads queries value_dim"]
"""One row per query, as wide as a value's."""

KeyMask = Bool[Tensor, "batch keys"]
"""True where a key takes part, in all heads alike."""

Packing = Int[Tensor, " boundaries"] | Int[Tensor, "batch keys"]
"""Documents in one sequence: boundaries 0, end of the first, …, n, or the number of each token's document."""
