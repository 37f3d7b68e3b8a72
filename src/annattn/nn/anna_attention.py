"""ANNA as a module for anyone's block: projections, hash functions that are buffers, a window, a cache."""

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from annattn.attention.manners import as_key_mask
from annattn.attention.mechanism import Gradient, angular
from annattn.attention.shapes import KeyMask, Keys, Outputs, Packing, Queries, Values
from annattn.attention.window import FORMS, Combine, Form, check_window, window_attention
from annattn.cache import WindowCache
from annattn.checks import require_choice, require_count, require_flag, require_number
from annattn.errors import InputError
from annattn.kernels import GRADIENTS
from annattn.lsh import Hasher
from annattn.seeds import check_seed, derive_seed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["AnnaAttention", "TrainingSchedule", "rotate"]

Rotary = Literal["none", "near", "all"]


class AnnaAttention(nn.Module):
    """Multi-head attention to put into any block: softmax over the last `window` tokens, ANNA over all before.

    The hash functions are buffers: they move with `.to()` (and stay float32), are saved and loaded with `state_dict`,
    and a seed alone rebuilds them. The gate per head between the two parts is a parameter.

    While training, the far part takes the form `train`, which costs:

    - "hashed": linear in n. What runs is what will run; queries and keys get a straight-through gradient, that of the
      collision probability on the pairs that met.
    - "sampled", with `noise` from 0 to 1: all pairs, so n² time and memory. Their gradient is exact on average.
    - "expected": all pairs as well; no hash function is drawn.

    In `eval()` it is always "hashed". `TrainingSchedule` steps from one form to the next.

    Args:
        dim: width of the tokens.
        heads: query heads; `dim` is a multiple of them.
        kv_heads: key and value heads, shared by equally many query heads; as many as `heads` unless given.
        tables: ℓ.
        hashes: z.
        family: "hyperplane" or "cross_polytope".
        rotary: whether queries and keys are rotated by their positions: not at all, in the window alone, or in both
            parts. A far key is met for what it is and not for where it is unless this is "all".
        is_causal: whether a token sees only those up to itself.
        per_head: one draw of hash functions per key head, or one for all.
        shared: whether tables share hash functions, see `HashFamily.sample`.
        window: how many of the last tokens are attended to exactly; 0 for none.
        combine: how the two parts become one output, see `window_attention`; "joined" was better on real text.
        shift: 1 to meet a far token and read the one after it, see `window_attention`.
        train: the form above.
        noise: of the form "sampled".
        gradient: of the form "hashed": "linear", "exact" (quadratic in the size of the buckets) or "none".
        bias: whether projections have one.
        seed: of the hash functions.

    >>> from annattn.nn import AnnaAttention
    >>> attention = AnnaAttention(64, 4, kv_heads=2, tables=8, hashes=6, window=16, rotary="near").eval()
    >>> x = torch.randn(2, 100, 64)
    >>> y = attention(x)
    >>> cache = attention.new_cache(batch=2)
    >>> first, second = attention(x[:, :70], cache=cache), attention(x[:, 70:], cache=cache)
    >>> torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=1e-4, atol=1e-5)
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        tables: int = 8,
        hashes: int = 8,
        family: str = "hyperplane",
        rotary: Rotary = "none",
        is_causal: bool = True,
        per_head: bool = True,
        shared: bool = False,
        window: int = 0,
        combine: Combine = "joined",
        shift: int = 0,
        train: Form = "hashed",
        noise: float = 1.0,
        gradient: Gradient = "linear",
        bias: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.dim, self.heads = require_count("dim", dim), require_count("heads", heads)
        self.kv_heads = require_count("kv_heads", self.heads if kv_heads is None else kv_heads)
        if self.dim % self.heads or self.heads % self.kv_heads:
            raise InputError(
                "dim, heads, kv_heads",
                given=(dim, heads, self.kv_heads),
                expected="dim a multiple of heads, and heads of kv_heads",
            )
        self.head_dim = self.dim // self.heads
        self.tables, self.hashes = require_count("tables", tables), require_count("hashes", hashes)
        self.is_causal, self.per_head = require_flag("is_causal", is_causal), require_flag("per_head", per_head)
        self.shared, bias = require_flag("shared", shared), require_flag("bias", bias)
        self.window, self.shift = check_window(window, combine, None, shift, is_causal=is_causal)
        self.combine: Combine = combine
        require_choice("rotary", rotary, ("none", "near", "all"))
        if rotary != "none" and self.head_dim % 2:
            raise InputError("dim", given=dim, expected="an even width per head, for rotary")
        self.rotary: Rotary = rotary
        self.family = angular(family, self.head_dim)
        require_choice("gradient", gradient, GRADIENTS)
        self.gradient: Gradient = gradient
        self.train_with(train, noise)
        self.query = nn.Linear(self.dim, self.dim, bias=bias)
        self.key = nn.Linear(self.dim, self.kv_heads * self.head_dim, bias=bias)
        self.value = nn.Linear(self.dim, self.kv_heads * self.head_dim, bias=bias)
        self.out = nn.Linear(self.dim, self.dim, bias=bias)
        self.gate = nn.Parameter(torch.zeros(self.heads)) if window else None
        self.seed = check_seed(seed)
        self.register_buffer("hash_seed", torch.tensor(self.seed))
        drawn = self._draw(self.seed)
        self._names = [f"hash_functions_{number}" for number in range(len(drawn.parameters))]
        for name, parameter in zip(self._names, drawn.parameters, strict=True):
            self.register_buffer(name, parameter.to(self.query.weight.device))
        self._bind()

    def train_with(self, form: Form, noise: float = 1.0) -> None:
        """The form of the far part in training from now on."""
        require_choice("train", form, FORMS)
        self.form: Form = form
        self.noise = require_number("noise", noise, "a number from 0 to 1", low=0, high=1)

    @property
    def training_cost(self) -> str:
        """How time and memory of a training step grow with the number of tokens n.

        >>> AnnaAttention(8, 1, window=4, train="sampled").training_cost
        'n² (all pairs)'
        """
        return ("n · window" if self.window else "n") if self.form == "hashed" else "n² (all pairs)"

    @property
    def hasher(self) -> Hasher:
        """The hash functions."""
        return self._hasher

    def redraw(self, seed: int) -> None:
        """Draw new hash functions, in place; training that sees several draws depends on none of them."""
        self.seed = check_seed(seed)
        with torch.no_grad():
            self.get_buffer("hash_seed").fill_(self.seed)
            for name, parameter in zip(self._names, self._draw(self.seed).parameters, strict=True):
                self.get_buffer(name).copy_(parameter)
        self._bind()

    def reset_parameters(self) -> None:
        """Initialise anew, hash functions from the seed: for modules made on torch's meta device."""
        for linear in (self.query, self.key, self.value, self.out):
            linear.reset_parameters()
        if self.gate is not None:
            nn.init.zeros_(self.gate)
        self.redraw(self.seed)

    def new_cache(self, batch: int = 1, *, history: int = 32) -> WindowCache:
        """An empty cache to pass to `forward`; the last `history` tokens can be undone."""
        if not self.is_causal:
            raise InputError("cache", given="is_causal=False", expected="a causal module: a cache goes forward in time")
        return WindowCache(
            self.hasher, window=self.window, value_dim=self.head_dim, batch=batch, heads=self.kv_heads,
            combine=self.combine, shift=self.shift, history=history,
        )  # fmt: skip

    def forward(
        self,
        x: Float[Tensor, "batch n dim"],
        *,
        key_mask: KeyMask | None = None,
        documents: Packing | None = None,
        cache: WindowCache | None = None,
        group: "ProcessGroup | None" = None,
    ) -> Float[Tensor, "batch n dim"]:
        """Project, attend, project back.

        Args:
            x: tokens; with a cache, those after the ones it holds.
            key_mask: True where a token may be attended to.
            documents: boundaries of the documents packed into the sequence, see `anna_attention`; not with a cache.
            cache: what `new_cache` gave.
            group: the ranks that hold the sequence among them, where `x` is this rank's slice of it; see
                `annattn.distributed`. Not with a cache, and in training with the form "hashed" only: the others need
                all pairs of tokens.
        """
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise InputError("x", given=f"shape {tuple(x.shape)}", expected=f"(batch, n, {self.dim})")
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        read = self.attend(query, key, value, key_mask=key_mask, documents=documents, cache=cache, group=group)
        return self.out(read.transpose(1, 2).flatten(2).to(x.dtype))

    def attend(
        self,
        query: Queries,
        key: Keys,
        value: Values,
        *,
        key_mask: KeyMask | None = None,
        documents: Packing | None = None,
        cache: WindowCache | None = None,
        group: "ProcessGroup | None" = None,
    ) -> Outputs:
        """The same for queries, keys and values that are ready, not rotated yet.

        >>> attention = AnnaAttention(8, 2, tables=4, hashes=4)
        >>> attention.attend(*torch.randn(3, 1, 2, 10, 4)).shape
        torch.Size([1, 2, 10, 4])
        """
        key_mask = as_key_mask(key_mask, query, key)
        if group is not None:
            return self._attend_cut(query, key, value, key_mask, documents, cache, group)
        query, key, near = self._rotated(query, key, 0 if cache is None else cache.tokens)
        gate = self._gate
        if cache is not None:
            if documents is not None:
                raise InputError("documents", given="boundaries and a cache", expected="one of them")
            self._check_cache(cache)
            if self.training and torch.is_grad_enabled():
                raise InputError(
                    "cache",
                    given="one while training",
                    expected="none: it keeps nothing that a gradient could be taken of",
                    hint="call eval(), or use torch.no_grad()",
                )
            return cache.step(query, key, value, key_mask=key_mask, near=near, gate=gate)
        return window_attention(
            query, key, value, self.hasher, window=self.window, is_causal=self.is_causal, key_mask=key_mask,
            documents=documents, combine=self.combine, gate=gate, shift=self.shift, near=near,
            form=self.form if self.training else "hashed", noise=self.noise, gradient=self.gradient,
        )  # fmt: skip

    def _attend_cut(
        self, query: Tensor, key: Tensor, value: Tensor, key_mask: Tensor | None, documents: Tensor | None,
        cache: WindowCache | None, group: "ProcessGroup",
    ) -> Tensor:  # fmt: skip
        """`attend` for a sequence that is cut among ranks."""
        from annattn import distributed  # not every build of torch has process groups

        if cache is not None:
            raise InputError(
                "cache",
                given="one, and a group",
                expected="one of them: no rank holds all the tokens that a cache goes on from",
                hint="decode on one process",
            )
        if self.training and self.form != "hashed":
            raise InputError(
                "group",
                given=f"one for a module that trains with {self.form!r}, which takes all pairs of tokens",
                expected="the form 'hashed', whose tables ranks can add up",
                hint='call train_with("hashed"), or eval()',
            )
        first = distributed.first_place(key.shape[2], group=group) if self.rotary != "none" else 0
        query, key, near = self._rotated(query, key, first)
        return distributed.window_attention(
            query, key, value, self.hasher, window=self.window, group=group, is_causal=self.is_causal,
            key_mask=key_mask, documents=documents, combine=self.combine, gate=self._gate, shift=self.shift, near=near,
            gradient=self.gradient,
        )  # fmt: skip

    @property
    def _gate(self) -> Tensor | float:
        return 0.0 if self.gate is None else self.gate

    def _rotated(self, query: Tensor, key: Tensor, first: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
        """Queries and keys of the far part, and those of the near part where they are others."""
        if self.rotary == "none":
            return query, key, None
        places = torch.arange(key.shape[2], device=key.device) + first
        near = rotate(query, places[-query.shape[2] :]), rotate(key, places)
        return (*near, None) if self.rotary == "all" else (query, key, near)

    def extra_repr(self) -> str:
        """What `print` shows besides the projections."""
        return (
            f"heads={self.heads}, kv_heads={self.kv_heads}, {self.family}, tables={self.tables}, hashes={self.hashes}, "
            f"shared={self.shared}, window={self.window}, rotary={self.rotary!r}, train={self.form!r}, seed={self.seed}"
        )

    def _check_cache(self, cache: WindowCache) -> None:
        names = ("window", "combine", "shift")
        theirs, own = ([(name, getattr(one, name)) for name in names] for one in (cache, self))
        if cache.state.hasher != self.hasher or theirs != own:
            raise InputError(
                "cache",
                given=f"{cache.state.hasher} with {dict(theirs)}",
                expected=f"one of this module, {self.hasher} with {dict(own)}",
                hint="new_cache()",
            )

    def _draw(self, seed: int) -> Hasher:
        heads = self.kv_heads if self.per_head else 1
        return self.family.sample(tables=self.tables, hashes=self.hashes, seed=seed, heads=heads, shared=self.shared)

    def _bind(self) -> None:
        """The buffers as a hasher; made here and not in `forward`, where torch.compile would have to trace it."""
        drawn = tuple(self.get_buffer(name) for name in self._names)
        heads = self.kv_heads if self.per_head else 1
        self._hasher = Hasher(self.family, self.tables, self.hashes, self.seed, drawn, heads, self.shared)

    def _apply(self, fn: Any, recurse: bool = True) -> "AnnaAttention":
        # Hash functions move to another device but keep their dtype: rounded ones would be others.
        before = {name: self.get_buffer(name) for name in (*self._names, "hash_seed")}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            moved = self.get_buffer(name)
            if moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        self._bind()
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        given = [state_dict.get(prefix + name) for name in self._names]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        seed = self.get_buffer("hash_seed")
        if not seed.is_meta:
            fit = all(
                x is None or x.shape == self.get_buffer(name).shape for name, x in zip(self._names, given, strict=True)
            )
            if not fit:
                with torch.no_grad():
                    seed.fill_(self.seed)  # torch reports the shapes; the functions stay, and so does their seed
            elif int(seed) != self.seed and all(x is None for x in given):
                self.redraw(int(seed))
            self.seed = int(seed)
        self._bind()


class TrainingSchedule:
    """Steps every `AnnaAttention` of a model from averages to hashing, and redraws its hash functions on the way.

    First the "expected" form for `expected` steps, then "sampled" with noise rising from 0 to 1 over `ramp` steps, both
    of n² cost, then `finish`: "hashed", of linear cost, or "sampled" at noise 1. Call `step()` after each optimiser
    step. New hash functions come every `redraw` steps, for each module others; 0 for none.

    >>> model = torch.nn.Sequential(AnnaAttention(8, 2), AnnaAttention(8, 2))
    >>> schedule = TrainingSchedule(model, expected=2, ramp=2)
    >>> forms = []
    >>> for _ in range(5):
    ...     forms.append((model[0].form, model[0].noise))
    ...     schedule.step()
    >>> forms
    [('expected', 0.0), ('expected', 0.0), ('sampled', 0.0), ('sampled', 0.5), ('hashed', 1.0)]
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        expected: int,
        ramp: int,
        finish: Literal["hashed", "sampled"] = "hashed",
        redraw: int = 0,
        seed: int = 0,
    ) -> None:
        self.modules = [module for module in model.modules() if isinstance(module, AnnaAttention)]
        if not self.modules:
            raise InputError("model", given=type(model).__name__, expected="a model with AnnaAttention modules in it")
        self.expected = require_count("expected", expected, least=0)
        self.ramp = require_count("ramp", ramp, least=0)
        self.redraw, self.seed = require_count("redraw", redraw, least=0), check_seed(seed)
        require_choice("finish", finish, ("hashed", "sampled"))
        self.finish: Form = finish
        self.steps = 0
        self._set()

    @property
    def form(self) -> Form:
        """What the modules train with at this step."""
        if self.steps < self.expected:
            return "expected"
        return "sampled" if self.steps < self.expected + self.ramp else self.finish

    @property
    def noise(self) -> float:
        """And the noise of the form "sampled"."""
        return (
            min(max((self.steps - self.expected) / self.ramp, 0.0), 1.0)
            if self.ramp
            else float(self.form != "expected")
        )

    def step(self) -> None:
        """One training step is done."""
        self.steps += 1
        self._set()

    def state_dict(self) -> dict[str, int]:
        """How far it is."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there; hash functions are those the modules loaded."""
        self.steps = require_count("steps", state["steps"], least=0)
        self._set(draw=False)

    def _set(self, *, draw: bool = True) -> None:
        for number, module in enumerate(self.modules):
            module.train_with(self.form, self.noise)
            if draw and self.redraw and self.steps and self.steps % self.redraw == 0:
                module.redraw(derive_seed(self.seed, self.steps // self.redraw, number))


def rotate(
    x: Float[Tensor, "batch heads n dim"], places: Int[Tensor, " n"], base: float = 10_000.0
) -> Float[Tensor, "batch heads n dim"]:
    """Rows rotated by their positions, as in RoFormer: products of two depend on the distance of their places alone.

    >>> rotate(torch.ones(1, 1, 3, 4), torch.arange(3)).square().sum(-1).round()
    tensor([[[4., 4., 4.]]])
    """
    half = x.shape[-1] // 2
    turns = torch.exp(torch.arange(half, device=x.device, dtype=torch.float64) * (-math.log(base) / half))
    angles = places[:, None].double() * turns
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=-1)
