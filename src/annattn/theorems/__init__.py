"""The paper's theorems, one per file: build what is promised, run it, and compare it with its bound."""

from annattn.theorems import (
    anna_simulates_low_rank,
    anna_simulates_mpc,
    anna_simulates_mpc_improved,
    depth_lower_bounds,
    induction_heads,
    k_hop,
    linear_memory,
    low_rank_separation,
    lsh_guarantee,
    match2,
    mpc_simulates_anna,
    mpc_simulates_ema,
    mpc_simulates_softmax,
    sum_and_reformer,
)
from annattn.theorems.verdict import Bound, Effort, Theorem, Verdict

__all__ = ["THEOREMS", "Bound", "Effort", "Theorem", "Verdict"]

THEOREMS: dict[str, Theorem] = {
    "lsh-guarantee": lsh_guarantee.row,
    "linear-memory": linear_memory.row,
    "anna-simulates-mpc": anna_simulates_mpc.row,
    "anna-simulates-mpc-improved": anna_simulates_mpc_improved.row,
    "mpc-simulates-ema": mpc_simulates_ema.row,
    "mpc-simulates-anna": mpc_simulates_anna.row,
    "mpc-simulates-softmax": mpc_simulates_softmax.row,
    "depth-lower-bounds": depth_lower_bounds.row,
    "anna-simulates-low-rank": anna_simulates_low_rank.row,
    "low-rank-separation": low_rank_separation.row,
    "match2": match2.row,
    "induction-heads": induction_heads.row,
    "k-hop": k_hop.row,
    "sum-and-reformer": sum_and_reformer.row,
}
"""Every row by name. Call it with an effort, `"tiny"`, `"quick"` or `"full"`, to get its `Verdict`."""
