"""Attention on one process and on the ranks of a group, from the same description."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import annattn as aa
from annattn import distributed
from annattn.attention.window import window_attention

WHOLE = {
    "anna": aa.anna_attention,
    "exact": aa.exact_match_attention,
    "latest": aa.latest_match_attention,
    "window": window_attention,
}
CUT = {
    "anna": distributed.anna_attention,
    "exact": distributed.exact_match_attention,
    "latest": distributed.latest_match_attention,
    "window": distributed.window_attention,
}


@dataclass(frozen=True)
class Case:
    """A call: sizes, how the sequence is cut (lengths of the ranks' slices), and options."""

    kind: str = "anna"
    cut: tuple[int, ...] = (20, 20)
    query_cut: tuple[int, ...] | None = None
    batch: int = 2
    heads: int = 4
    key_heads: int = 2
    dim: int = 6
    width: int = 5
    dtype: torch.dtype = torch.float64
    tables: int = 4
    hashes: int = 3
    family: str = "Hyperplane"
    per_head: bool = False
    masked: bool = False
    documents: str | None = None
    gradients: bool = True
    bad: tuple[int, ...] = ()
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        differs = {name: value for name, value in vars(self).items() if value != getattr(Case(), name)}
        return " ".join(f"{name}={value}" for name, value in differs.items())

    def but(self, **changes: Any) -> "Case":
        return replace(self, **changes)

    @property
    def queries(self) -> tuple[int, ...]:
        return self.cut if self.query_cut is None else self.query_cut

    def inputs(self) -> tuple[dict[str, Tensor], dict[str, Any], Tensor]:
        """Tensors of the whole sequence, arguments that are not cut, and a gradient of the output."""
        made = torch.Generator().manual_seed(self.seed)
        n, m = sum(self.queries), sum(self.cut)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=made, dtype=torch.float64).to(self.dtype)

        query, key = draw(self.batch, self.heads, n, self.dim), draw(self.batch, self.key_heads, m, self.dim)
        value = draw(self.batch, self.key_heads, m, self.width)
        if self.kind == "exact":  # few distinct rows, some of them NaN and −0.0
            query, key = ((x[..., :2] * 0.8).round().to(self.dtype) for x in (query, key))
            query[0, 0, :1], key[0, 0, :2] = torch.nan, torch.nan
        for place in self.bad:
            key[0, 0, place, 0] = torch.inf
        tensors = {"query": query, "key": key, "value": value}
        if self.masked:
            tensors["key_mask"] = torch.rand(self.batch, m, generator=made) < 0.7
        if self.documents == "numbers":
            tensors["documents"] = torch.randint(0, max(1, min(5, n)), (self.batch, n), generator=made)
        whole: dict[str, Any] = dict(self.options)
        if self.documents == "slices":  # one per rank
            whole["documents"] = torch.tensor([0, *self.cut]).cumsum(0)
        if self.documents == "boundaries":
            ends = torch.randint(0, n + 1, (5,), generator=made).sort().values
            whole["documents"] = torch.cat([torch.tensor([0]), ends, torch.tensor([n])])
        if self.kind != "exact":
            family = {
                "Hyperplane": lambda: aa.lsh.Hyperplane(self.dim),
                "CrossPolytope": lambda: aa.lsh.CrossPolytope(self.dim),
                "Euclidean": lambda: aa.lsh.Euclidean(self.dim, width=4.0),
            }[self.family]()
            heads = self.key_heads if self.per_head else 1
            whole["hasher"] = family.sample(tables=self.tables, hashes=self.hashes, seed=3, heads=heads)
        return tensors, whole, draw(self.batch, self.heads, n, self.width)


def _run(attend: Any, tensors: dict[str, Tensor], whole: dict[str, Any], push: Tensor, case: Case) -> list[Tensor]:
    trained = [tensors[name] for name in ("query", "key", "value")] if case.kind != "exact" else [tensors["value"]]
    for x in trained if case.gradients else ():
        x.requires_grad_()
    out = attend(**tensors, **whole)
    if not case.gradients:
        return [out.detach()]
    out.backward(push)
    return [out.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in trained)]


def on_one(case: Case) -> list[Tensor]:
    """Outputs and gradients of one process."""
    tensors, whole, push = case.inputs()
    whole.pop("way", None)
    return _run(WHOLE[case.kind], tensors, whole, push, case)


def on_rank(group: dist.ProcessGroup, case: Case) -> tuple[list[Tensor], distributed.Traffic]:
    """Outputs and gradients of this rank's slice, and what was sent."""
    tensors, whole, push = case.inputs()
    rank = dist.get_rank(group)
    of_queries, of_keys = (slice(sum(cut[:rank]), sum(cut[: rank + 1])) for cut in (case.queries, case.cut))
    mine = {
        name: x[:, :, of_queries if name == "query" else of_keys].clone() if x.ndim == 4 else x[:, of_keys].clone()
        for name, x in tensors.items()
    }
    with distributed.counting() as traffic:
        found = _run(CUT[case.kind], mine, {**whole, "group": group}, push[:, :, of_queries], case)
    return found, traffic
