"""A training run as data: task, model, stages, optimiser. The same recipe and seed give the same weights."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from annattn.checks import LARGEST_COUNT, keep_counts, keep_number, require_flag, require_number
from annattn.errors import InputError
from annattn.nn import AttentionConfig, TransformerConfig
from annattn.nn.checkpoint import read_attention, read_config, write_attention, write_config
from annattn.tasks import TASKS, Task

__all__ = ["Recipe", "Stage", "check_vocabularies", "read_recipe", "write_recipe"]


@dataclass(frozen=True)
class Stage:
    """Some training steps with one mechanism per layer, or with the first layers alone if there are fewer mechanisms.

    In mechanisms that have a noise, it moves from the first number of `noise` to the second. `n`, if given, is the
    length of the sequences in this stage; `task_options` replace the recipe's where both have them. With `copies`, each
    layer that the stage before did not have starts as a copy of the layer before it.

    >>> from annattn.nn import SampledCollisionConfig
    >>> stage = Stage(steps=11, attention=(SampledCollisionConfig(),), noise=(0.0, 1.0))
    >>> [stage.at(step)[0].noise for step in (0, 5, 10)]
    [0.0, 0.5, 1.0]
    """

    steps: int
    attention: tuple[AttentionConfig, ...]
    noise: tuple[float, float] = (1.0, 1.0)
    n: int | None = None
    task_options: dict[str, Any] = field(default_factory=dict)
    copies: bool = False

    def __post_init__(self) -> None:
        keep_counts(self, "steps", most=LARGEST_COUNT, hint="pass 1 or more")
        if self.n is not None:
            keep_counts(self, "n", most=LARGEST_COUNT)
        require_flag("copies", self.copies)
        if not isinstance(self.noise, tuple | list) or len(self.noise) != 2:
            raise InputError("noise of a stage", given=self.noise, expected="its first and its last number")
        noise = tuple(require_number("noise of a stage", one, "a finite number") for one in self.noise)
        object.__setattr__(self, "noise", noise)

    def at(self, step: int) -> tuple[AttentionConfig, ...]:
        """The mechanisms of this step of the stage."""
        first, last = self.noise
        noise = first + (last - first) * step / max(1, self.steps - 1)
        return tuple(
            replace(one, noise=noise) if any(f.name == "noise" for f in fields(one)) else one for one in self.attention
        )


@dataclass(frozen=True)
class Recipe:
    """What `train` needs.

    - task: a name in `annattn.tasks.TASKS`; task_options: its parameters.
    - model: its sizes; `attention` is what the finished model runs with.
    - stages: run one after the other, with fresh hash functions in every step.
    - rate: the largest learning rate, reached after `warmup` steps; from step `decay_from` on, a cosine takes it to a
      twentieth.
    - dataset: None draws fresh data in every step; a number draws that many sequences once, as in the paper's Match2.

    >>> from annattn.experiments import RECIPES
    >>> RECIPES["match2_paper"].steps
    20000
    """

    task: str
    model: TransformerConfig
    stages: tuple[Stage, ...]
    task_options: dict[str, Any] = field(default_factory=dict)
    batch: int = 32
    rate: float = 1e-3
    warmup: int = 100
    decay: bool = True
    decay_from: int = 0
    clip: float | None = 1.0
    dataset: int | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError("task", given=repr(self.task), expected=f"one of {', '.join(TASKS)}")
        check_vocabularies(self.model, self.make_task())
        require_flag("decay", self.decay)
        keep_counts(self, "batch", "warmup", most=LARGEST_COUNT, hint="pass 1 or more")
        if self.dataset is not None:
            keep_counts(self, "dataset", most=LARGEST_COUNT, hint="pass 1 or more")
        for name in ("rate", "clip"):
            if getattr(self, name) is not None:
                keep_number(self, name, "a number above 0", low=math.ulp(0.0))
        for stage in self.stages:
            check_vocabularies(self.model, self.make_task(stage))
            if not 1 <= len(stage.attention) <= self.model.layers:
                given, most = f"{len(stage.attention)} mechanisms", self.model.layers
                raise InputError("stage", given=given, expected=f"one per layer, of which there are {most}, or fewer")
        if self.steps < 1:
            raise InputError("stages", given="no steps", expected="at least one")
        keep_counts(self, "decay_from", least=0, most=self.steps - 1, hint="pass 0 to begin at once")

    @property
    def steps(self) -> int:
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    def make_task(self, stage: Stage | None = None) -> Task:
        """The task, as it is in this stage if one is given."""
        options = dict(self.task_options)
        if stage is not None:
            options |= stage.task_options | ({} if stage.n is None else {"n": stage.n})
        try:
            return TASKS[self.task](**options)
        except TypeError:
            raise InputError("task_options", given=options, expected=f"those of {self.task}") from None

    def attention_at(self, step: int) -> tuple[AttentionConfig, ...]:
        """The mechanisms of a step of the whole run."""
        stage, within = self.stage_at(step)
        return stage.at(within)

    def stage_at(self, step: int) -> tuple[Stage, int]:
        """The stage of a step of the whole run, and the number of the step within it."""
        within = step
        for stage in self.stages:
            if within < stage.steps:
                return stage, within
            within -= stage.steps
        raise InputError("step", given=step, expected=f"below {self.steps}")

    def shortened(self, share: float) -> "Recipe":
        """The same recipe with this share of the steps of every stage and of the warm-up.

        >>> from annattn.experiments import RECIPES
        >>> RECIPES["match2_paper"].shortened(0.1).steps
        2000
        """
        if not 0 < share < math.inf:
            raise InputError("share", given=share, expected="a number above 0", hint="1 runs every step")
        stages = tuple(replace(stage, steps=max(1, round(share * stage.steps))) for stage in self.stages)
        warmup, decay_from = max(1, round(share * self.warmup)), round(share * self.decay_from)
        return replace(self, stages=stages, warmup=warmup, decay_from=min(decay_from, sum(s.steps for s in stages) - 1))


def check_vocabularies(model: TransformerConfig, task: Task) -> None:
    """Raise unless the model's vocabularies are those of the task.

    >>> from annattn.experiments import RECIPES
    >>> check_vocabularies(RECIPES["match2_paper"].model, TASKS["match2"]())
    """
    if (model.input_vocab, model.target_vocab) != (task.input_vocab, task.target_vocab):
        given = f"vocabularies of {model.input_vocab} and {model.target_vocab}"
        raise InputError("model", given=given, expected=f"the task's, {task.input_vocab} and {task.target_vocab}")


def write_recipe(recipe: Recipe) -> dict[str, Any]:
    """A recipe as data for JSON.

    >>> from annattn.experiments import RECIPES
    >>> write_recipe(RECIPES["match2_paper"])["task"]
    'match2'
    """
    data = {f.name: getattr(recipe, f.name) for f in fields(recipe)}
    data["model"] = write_config(recipe.model)
    data["stages"] = [
        asdict(stage) | {"attention": [write_attention(one) for one in stage.attention], "noise": list(stage.noise)}
        for stage in recipe.stages
    ]
    return data


def read_recipe(data: dict[str, Any]) -> Recipe:
    """The inverse of `write_recipe`.

    >>> from annattn.experiments import RECIPES
    >>> all(read_recipe(write_recipe(recipe)) == recipe for recipe in RECIPES.values())
    True
    """
    try:
        options = dict(data)
        options["model"] = read_config(options["model"])
        options["stages"] = tuple(
            Stage(
                one["steps"],
                tuple(read_attention(a) for a in one["attention"]),
                tuple(one["noise"]),
                one.get("n"),
                dict(one.get("task_options", {})),
                one.get("copies", False),
            )
            for one in options["stages"]
        )
        options["task_options"] = dict(options.get("task_options", {}))
        return Recipe(**options)
    except InputError:
        raise
    except (TypeError, KeyError, ValueError, AttributeError) as wrong:
        raise InputError("recipe", given=repr(wrong), expected="the fields of Recipe") from None
