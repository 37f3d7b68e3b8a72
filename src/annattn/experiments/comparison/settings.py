"""What is compared and how long it is trained: tasks in their sizes, and profiles."""

from dataclasses import dataclass, field, replace
from typing import Any

from annattn.experiments.comparison.contenders import Contender
from annattn.experiments.recipe import Recipe, Stage
from annattn.nn import TransformerConfig
from annattn.tasks import TASKS, Batch, KHop

__all__ = ["PROFILES", "ComparedTask", "Profile"]

_DIM, _HEADS = 64, 2


@dataclass(frozen=True)
class ComparedTask:
    """A task in one size, and the model that all contenders share but for their attention.

    - columns: what is measured, a title by the name of the column; by default the task itself.
    - hops: for k-hop, the number of hops that a column asks for.
    - seeds: how many runs a contender has at the learning rate it chose.
    """

    title: str
    task: str
    options: dict[str, Any]
    layers: int
    steps: int
    batch: int
    is_causal: bool = True
    model: dict[str, Any] = field(default_factory=dict)
    hops: dict[str, int] = field(default_factory=dict)
    seeds: int = 1

    @property
    def n(self) -> int:
        """The length of its sequences."""
        return TASKS[self.task](**self.options).n

    def columns(self, name: str) -> dict[str, str]:
        """The columns of the table that a run fills, and their titles.

        >>> PROFILES["quick"].tasks["k_hop"].columns("k_hop")["k_hop_2"]
        '2-hop'
        """
        return {column: f"{hops}-hop" for column, hops in self.hops.items()} or {name: self.title}

    def recipe(self, contender: Contender, rate: float) -> Recipe:
        """How a contender is trained on it."""
        task = TASKS[self.task](**self.options)
        model = TransformerConfig(
            task.input_vocab,
            task.target_vocab,
            task.n,
            _DIM,
            _HEADS,
            contender.layers(self.layers, task.n),
            is_causal=self.is_causal,
            **self.model,
        )
        stages = contender.stages(self.steps, self.layers, task.n)
        if self.hops:
            stages = (*_one_doubling_at_a_time(stages[0], task.n), *stages[1:])
        return Recipe(self.task, model, stages, self.options, self.batch, rate, warmup=max(1, self.steps // 20))

    def data(self, column: str, split: str, samples: int) -> Batch:
        """Held-out sequences of a column."""
        task = TASKS[self.task](**self.options)
        if isinstance(task, KHop) and column in self.hops:
            return task.sample(samples, (0, 2), split=split, hops=self.hops[column])
        return task.sample(samples, (0, 2), split=split)

    def guess(self, column: str, samples: int) -> float:
        """The error of the best constant answer on the test sequences.

        >>> 0.4 < PROFILES["quick"].tasks["match2"].guess("match2", 64) < 0.6
        True
        """
        batch = self.data(column, "test", samples)
        targets = batch.targets[batch.mask]
        return 1 - float((targets == max(set(targets.tolist()), key=targets.tolist().count)).mean())


@dataclass(frozen=True)
class Profile:
    """Tasks in the order in which they run, and how much is tuned and measured.

    - rates: the learning rates that seed 0 tries; the one with the lowest error on validation data is kept, and the
      other seeds use it.
    - samples, draws: held-out sequences, and draws of the hash functions or features.
    """

    tasks: dict[str, ComparedTask]
    rates: tuple[float, ...] = (3e-3, 1e-3)
    samples: int = 256
    draws: int = 3

    def with_seeds(self, seeds: int) -> "Profile":
        """The same with this many runs per contender and task at the learning rate it chose.

        >>> {task.seeds for task in PROFILES["quick"].with_seeds(3).tasks.values()}
        {3}
        """
        return replace(self, tasks={name: replace(task, seeds=seeds) for name, task in self.tasks.items()})


def _one_doubling_at_a_time(stage: Stage, n: int) -> tuple[Stage, ...]:
    """The same number of steps: one hop with the first two layers on short words, then twice the hops and a layer more.

    The last part, with all layers, hops and letters, has half of the steps.
    """
    deepest = len(stage.attention)
    each = stage.steps // (2 * (deepest - 2))
    if each < 1:
        return (stage,)
    parts = [
        replace(
            stage,
            steps=each,
            attention=stage.attention[:layers],
            n=n * layers // deepest,
            task_options={"asked_to": 2 ** (layers - 2)},
            copies=layers > 3,  # the first layer that doubles is not like the one before
        )
        for layers in range(2, deepest)
    ]
    return *parts, replace(stage, steps=stage.steps - sum(one.steps for one in parts), copies=True)


_ANY_ORDER: dict[str, Any] = {"positions": "none"}
# The first layer sees distances; values of the second carry their position, so that the latest match can win.
_LATEST: dict[str, Any] = {"positions": "none", "rotary": (True, False), "recency": (0.0, 0.5)}
_RECALL: dict[str, Any] = {"positions": "none", "rotary": (True, False), "identity_init": True}
_LISTOPS: dict[str, Any] = {"mlp": 128, "pooled": True, "padding": 0}


def _hopping(layers: int) -> dict[str, Any]:
    """As `_LATEST`; layers from the third on go to positions, so that they can double hops."""
    rest = layers - 2
    return {"positions": "prime", "rotary": (True, *(False,) * (rest + 1)), "recency": (0.0, 0.5, *(0.0,) * rest)}


def _tasks(
    *,
    steps: dict[str, int],
    other_steps: int,
    sizes: dict[str, dict[str, Any]],
    lengths: dict[str, int],
    batches: dict[str, int],
    seeds: dict[str, int],
) -> dict[str, ComparedTask]:
    """The seven tasks, in the order in which they run; what belongs to one of them by its name.

    Sizes are the options of a task, or only its length where all profiles have the same letters and hops.
    """
    sizes = sizes | {
        "induction": {"n": lengths["induction"], "letters": 4},
        "k_hop": {"n": lengths["k_hop"], "letters": 4, "hops": 4},
        "k_hop_16": {"n": lengths["k_hop_16"], "letters": 4, "hops": 16},
    }

    def made(name: str, title: str, task: str, layers: int, is_causal: bool, model: dict[str, Any]) -> ComparedTask:
        hops = {"k_hop": {f"k_hop_{k}": k for k in range(1, 5)}, "k_hop_16": {"k_hop_16": 16}}.get(name, {})
        batch, runs = batches.get(name, 32), seeds.get(name, 1)
        return ComparedTask(
            title, task, sizes[name], layers, steps.get(name, other_steps), batch, is_causal, model, hops, runs
        )

    listops = "ListOps" if "n" not in sizes["listops"] else f"ListOps below {sizes['listops']['n']}"
    return {
        "match2": made("match2", "Match2", "match2", 1, False, _ANY_ORDER),
        "induction": made("induction", "induction heads", "induction_heads", 2, True, _LATEST),
        "recall": made("recall", "MQAR", "associative_recall", 2, True, _RECALL),
        "sum": made("sum", "SUM", "sum", 2, False, _ANY_ORDER),
        "listops": made("listops", listops, "listops", 2, False, _LISTOPS),
        "k_hop": made("k_hop", "k-hop", "k_hop", 4, True, _hopping(4)),
        "k_hop_16": made("k_hop_16", "16-hop", "k_hop", 6, True, _hopping(6)),
    }


_SMALL = Profile(
    _tasks(
        steps={"match2": 400, "sum": 150, "listops": 150, "k_hop_16": 60},
        other_steps=200,
        sizes={
            "match2": {"n": 16, "modulus": 17},
            "recall": {"n": 32, "pairs": 8, "keys": 64, "values": 16},
            "sum": {"n": 16, "largest": 5},
            "listops": {"n": 32, "longer_than": 8},
        },
        lengths={"induction": 32, "k_hop": 32, "k_hop_16": 80},
        batches={"k_hop": 16, "induction": 16, "recall": 16, "k_hop_16": 4},
        seeds={},
    ),
    rates=(3e-3,),
    draws=2,
)
_QUICK = Profile(
    _tasks(
        steps={"match2": 1000, "induction": 600, "k_hop": 2000, "k_hop_16": 300},
        other_steps=500,
        sizes={
            "match2": {"n": 32, "modulus": 37},
            "recall": {"n": 64, "pairs": 16, "keys": 128, "values": 32},
            "sum": {"n": 32, "largest": 5},
            "listops": {"n": 100, "longer_than": 25},
        },
        lengths={"induction": 64, "k_hop": 64, "k_hop_16": 100},
        batches={"k_hop": 16, "induction": 16, "recall": 16, "k_hop_16": 8},
        seeds={"match2": 3, "induction": 3, "recall": 3, "sum": 3},
    ),
    rates=(3e-3,),
)
_FULL = Profile(
    _tasks(
        steps={"match2": 3000, "listops": 600},
        other_steps=2000,
        sizes={
            "match2": {"n": 32, "modulus": 37},
            "recall": {"n": 256, "pairs": 64, "keys": 4096, "values": 64},
            "sum": {"n": 64, "largest": 9},
            "listops": {},
        },
        lengths={"induction": 100, "k_hop": 100, "k_hop_16": 200},
        batches={"recall": 16, "listops": 16, "k_hop_16": 16},
        seeds={"match2": 3, "induction": 3, "recall": 3, "sum": 3, "k_hop": 3},
    ),
    samples=2000,
)
# As the CPU-sized model of ListOps was published: 5,000 steps of batch 32 at rate 1e-4, and 2,000 test sequences.
_LISTOPS_AS_PUBLISHED = Profile(
    {"listops": ComparedTask("ListOps", "listops", {}, 2, 5000, 32, False, _LISTOPS)}, (1e-4,), samples=2000
)
PROFILES: dict[str, Profile] = {
    "small": _SMALL,
    "quick": _QUICK,
    "full": _FULL,
    "listops": _LISTOPS_AS_PUBLISHED,
}
"""What `annattn compare` runs, by name."""
