"""The paper's experiments and ours, each from training to numbers and figures; `annattn reproduce` runs them."""

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from annattn.experiments.evaluation import Error, grid, measure
from annattn.experiments.figures import heat_map, lines
from annattn.experiments.recipe import Recipe
from annattn.experiments.recipes import RECIPES, STATES, recall_state_recipe
from annattn.experiments.training import train
from annattn.files import write_json
from annattn.nn import AnnaConfig, AttentionConfig, LatestMatchConfig, Transformer
from annattn.tasks import AssociativeRecall, KHop

__all__ = ["EXPERIMENTS", "PROFILES", "ExperimentContext", "Finding", "Profile"]


@dataclass(frozen=True)
class Finding:
    """One measured number, its spread over draws of the hash functions, and the number asked for.

    >>> Finding("error", 0.01, at_most=0.05).holds
    True
    """

    what: str
    measured: float
    at_most: float | None = None
    spread: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the number is as low as asked for; true if nothing was asked for."""
        return self.at_most is None or self.measured <= self.at_most


@dataclass(frozen=True)
class Profile:
    """How much an experiment trains and measures.

    - share: the share of a recipe's steps, by the recipe's name; `others` for recipes that are not named.
    - seeds: the number of runs, where several are asked for.
    - samples, draws: the numbers of sequences and of draws in a measurement.
    - first, second: the numbers of tables in the two layers, for the grid of induction heads.
    - lengths: the lengths at which associative recall is measured.
    - leaves_out: experiments that run only when they are named.
    """

    share: dict[str, float]
    others: float
    seeds: int
    samples: int
    draws: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    lengths: tuple[int, ...] = (256, 4096, 16_384)
    leaves_out: tuple[str, ...] = ()


_QUICK = {
    "match2_paper_beta_1": 0.05,
    "match2_paper_beta_10": 0.05,
    "induction_paper": 0.2,
    "induction_paper_beta_0.1": 0.04,
    "induction_paper_beta_10": 0.04,
    "induction_latest": 0.5,
}
_PAPER_STEPS = 400_000
# These recipes follow the paper but are shorter than its run.
_FULL = {name: _PAPER_STEPS / RECIPES[name].steps for name in RECIPES if name.startswith("induction_paper")}

PROFILES: dict[str, Profile] = {
    # The paper's two figures, trained the paper's way and directly, in a quarter of an hour on two cores.
    "quick": Profile(
        _QUICK,
        1.0,
        1,
        64,
        3,
        (32, 64, 96),
        (4, 16, 32),
        leaves_out=("families", "k_hop", "k_hop_16", "ablations", "recall", "recall_state"),
    ),
    "full": Profile(_FULL, 1.0, 10, 256, 10, tuple(range(32, 97, 8)), tuple(range(4, 33, 4))),
}


@dataclass
class ExperimentContext:
    """What an experiment trains, measures and writes with.

    - run: trains (recipe, name, seed, folder) before a model is needed; the command line shows a progress bar.
    - watch: gets what is measured and the number of parts; the function it yields is called after each part.
    """

    folder: Path
    profile: Profile
    watch: Callable[[str, int], AbstractContextManager[Callable[[], None]]] = lambda what, parts: nullcontext(
        lambda: None
    )
    run: Callable[[Recipe, str, int, Path], None] | None = None

    def model(self, name: str, *, seed: int = 0, recipe: Recipe | None = None) -> Transformer:
        """A trained model of this recipe: found finished in the folder, or trained now."""
        recipe = recipe or RECIPES[name]
        share = self.profile.share.get(name, self.profile.others)
        recipe = recipe if share == 1 else recipe.shortened(share)
        place = self.folder / "runs" / f"{name}-{seed}"
        if self.run is not None:
            self.run(recipe, f"{name}, seed {seed}", seed, place)
        return train(recipe, seed=seed, folder=place)

    def errors(self, model: Transformer, task: Any, cells: list[tuple[AttentionConfig, ...]]) -> list[Error]:
        """The errors with these mechanisms, with the profile's numbers of samples and draws."""
        samples, draws = self.profile.samples, self.profile.draws
        with self.watch("measuring", len(cells)) as advance:
            return grid(model, task, cells, samples=samples, draws=draws, report=lambda at, error: advance())

    def best(self, model: Transformer, task: Any, choices: list[list[tuple[AttentionConfig, ...]]]) -> list[Error]:
        """For each list, the error of the mechanisms that do best on a few sequences of the split "validation"."""
        few = task.sample(16, (0, 4), split="validation")

        with self.watch("choosing z", sum(map(len, choices))) as advance:

            def short_look(cell: tuple[AttentionConfig, ...]) -> float:
                advance()
                return measure(model.with_attention(*cell), task, draws=2, data=few).mean

            chosen = [min(some, key=short_look) for some in choices]
        return self.errors(model, task, chosen)

    def write(self, name: str, findings: list[Finding], data: Any) -> list[Finding]:
        """Write the numbers to a file, with the machine and the versions that gave them."""
        made = [asdict(one) for one in findings]
        machine = {"processor": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json({"findings": made, "machine": machine, "data": data}, self.folder / f"{name}.json")
        return findings


def match2_paper(context: ExperimentContext) -> list[Finding]:
    """Figure "Match2": the softmax surrogate with β = 0.1, then hashing with ℓ = 1 … 16 and z = 1 … 6."""
    recipe = RECIPES["match2_paper"]
    model, task = context.model("match2_paper"), recipe.make_task()
    tables, hashes = range(1, 17), range(1, 7)
    errors = context.errors(model, task, [(AnnaConfig("hyperplane", t, z),) for z in hashes for t in tables])
    (softmax,) = context.errors(model, task, [recipe.model.attention])
    series = {f"z = {z}": [(e.mean, e.spread) for e in errors[at * 16 : (at + 1) * 16]] for at, z in enumerate(hashes)}
    lines(context.folder / "match2_paper.svg", "Match2, the paper's way, β = 0.1", tables, series, x_label="tables ℓ")
    worst, spread = max(series["z = 1"][7:])
    findings = [
        Finding("softmax surrogate", softmax.mean),
        Finding("worst mean error over ℓ ≥ 8, z = 1", worst, at_most=0.0, spread=spread),
    ]
    return context.write("match2_paper", findings, {"tables": list(tables), "series": series})


def match2_direct(context: ExperimentContext) -> list[Finding]:
    """Match2 with ANNA trained directly: the error of every seed with at most 4 tables."""
    recipe = RECIPES["match2_direct"]
    task, found = recipe.make_task(), []
    for seed in range(context.profile.seeds):
        (error,) = context.errors(context.model("match2_direct", seed=seed), task, [recipe.model.attention])
        found.append((error.mean, error.spread))
    mean, spread = max(found)
    findings = [Finding(f"largest mean error, 4 tables, seeds: {len(found)}", mean, at_most=0.0, spread=spread)]
    return context.write("match2_direct", findings, {"errors": found})


def induction_heads(context: ExperimentContext) -> list[Finding]:
    """Figure "Induction heads", the paper's way, and the same grid for ANNA trained directly and for latest match."""
    rows, columns = context.profile.first, context.profile.second
    task = RECIPES["induction_direct"].make_task()
    data, maps, corners = {}, {}, {}
    for name, title in (
        ("induction_paper", "the paper's way"),
        ("induction_direct", "ANNA trained directly"),
        ("induction_latest", "latest match in layer 2"),
    ):
        model = context.model(name)
        cells = [(a, b) for a in rows for b in columns]
        if name == "induction_paper":
            found = context.best(model, task, [_hash_choices(cell) for cell in cells])
        else:
            found = context.errors(model, task, [_with_tables(RECIPES[name].model.attention, cell) for cell in cells])
        by_row = [found[at : at + len(columns)] for at in range(0, len(found), len(columns))]
        maps[name] = [[error.mean for error in row] for row in by_row]
        corners[name] = found[0], min(found, key=lambda error: error.mean), found[-1]
        spreads = [[error.spread for error in row] for row in by_row]
        data[name] = {"first": list(rows), "second": list(columns), "errors": maps[name], "spreads": spreads}
        heat_map(context.folder / f"{name}.svg", f"Induction heads, {title}", rows, columns, maps[name])
    paper, direct = maps["induction_paper"], maps["induction_direct"]
    wanted: list[tuple[str, Error, float | None]] = [
        ("paper's way at (32, 4)", corners["induction_paper"][0], 0.2),
        ("paper's way, best cell", corners["induction_paper"][1], 0.1),
        ("direct at (32, 4)", corners["induction_direct"][0], 0.05),
        ("direct at (96, 32)", corners["induction_direct"][2], 0.01),
        ("latest match at (32, 4)", corners["induction_latest"][0], None),
        ("latest match at (96, 32)", corners["induction_latest"][2], None),
    ]
    findings = [Finding(what, error.mean, asked, error.spread) for what, error, asked in wanted]
    findings.append(
        Finding(
            "cells where direct is not better than the paper's way",
            float(sum(d >= p for ds, ps in zip(direct, paper, strict=True) for d, p in zip(ds, ps, strict=True))),
            at_most=0.0,
        )
    )
    return context.write("induction_heads", findings, data)


def betas(context: ExperimentContext) -> list[Finding]:
    """The paper's way with β = 0.1, 1 and 10: the error of the surrogate, and of hashing with the best z."""
    findings = []
    for way, best, tables in (("match2_paper", 0.1, (8,)), ("induction_paper", 1.0, (32, 4))):
        for beta in (0.1, 1.0, 10.0):
            name = way if beta == best else f"{way}_beta_{beta:g}"
            model, task = context.model(name), RECIPES[name].make_task()
            (surrogate,) = context.errors(model, task, [model.config.attention])
            (hashed,) = context.best(model, task, [_hash_choices(tables)])
            findings.append(Finding(f"{way}, β = {beta:g}: surrogate", surrogate.mean))
            findings.append(
                Finding(f"{way}, β = {beta:g}: tables {':'.join(map(str, tables))}", hashed.mean, spread=hashed.spread)
            )
    return context.write("betas", findings, {one.what: one.measured for one in findings})


FRESH = 11
"""The seed of the test sequences that both families are measured on; nothing else uses it."""


def families(context: ExperimentContext) -> list[Finding]:
    """The surrogates of both figures read with hyperplanes and with cross-polytopes, as the paper does.

    For each family z is chosen on the split "validation". Then fresh test sequences are measured once.
    """
    profile, findings, data = context.profile, [], {}
    tables, rows = (1, 2, 4, 6, 8, 10, 12, 14, 16), {}
    for name in ("match2_paper", "induction_paper"):
        # Under another name, so that no profile changes the number of steps.
        recipe = RECIPES[name]
        model, task = context.model(f"families {name}", recipe=recipe), recipe.make_task()
        match2 = name == "match2_paper"
        samples = profile.samples if match2 else min(64, profile.samples)
        seen = task.sample(samples if match2 else 16, (0, 4), split="validation")
        (surrogate,) = grid(model, task, [recipe.model.attention], samples=samples, draws=1, seed=FRESH)
        findings.append(Finding(f"{name}: surrogate", surrogate.mean))
        for family, plural in (("hyperplane", "hyperplanes"), ("cross_polytope", "cross-polytopes")):
            cells = [(count,) for count in tables] if match2 else [(32, 4), (96, 32)]
            # One z for all numbers of tables of Match2, by the errors with 8 and 16; one per cell for induction heads.
            looks = [[(8,), (16,)]] if match2 else [[cell] for cell in cells]
            choices = list(product(range(1, 7 if match2 else 5), repeat=len(cells[0])))
            with context.watch(f"choosing z for {plural}", len(looks) * len(choices)) as advance:

                def error(look: list[tuple[int, ...]], z: tuple[int, ...]) -> float:
                    hashed = [model.with_attention(*_hashed(family, cell, z)) for cell in look]  # noqa: B023 - now
                    advance()
                    return sum(measure(one, task, draws=3 if match2 else 2, data=seen).mean for one in hashed)  # noqa: B023

                chosen = [min(choices, key=lambda z, look=look: error(look, z)) for look in looks]
            hashes = chosen * len(cells) if match2 else chosen
            with context.watch(f"measuring {plural}", len(cells)) as advance:
                found = grid(
                    model,
                    task,
                    [_hashed(family, cell, z) for cell, z in zip(cells, hashes, strict=True)],
                    samples=samples,
                    draws=profile.draws,
                    seed=FRESH,
                    report=lambda at, error, advance=advance: advance(),
                )
            if match2:
                rows[f"{plural}, z = {hashes[0][0]}"] = [(one.mean, one.spread) for one in found]
            for cell, z, one in zip(cells, hashes, found, strict=True):
                what = f"{name}, {plural}: tables {':'.join(map(str, cell))}, z = {':'.join(map(str, z))}"
                findings.append(Finding(what, one.mean, spread=one.spread))
                data[what] = {"error": one.mean, "spread": one.spread}
    lines(context.folder / "families.svg", "Match2, two families", tables, rows, x_label="tables ℓ")
    return context.write("families", findings, data)


def k_hop(context: ExperimentContext) -> list[Finding]:
    """The k-hop task with four layers of ANNA trained directly: the error over all tokens for k = 1 … 4 hops."""
    return _every_hop(context, "k_hop")


def k_hop_16(context: ExperimentContext) -> list[Finding]:
    """The same with six layers, for k = 1 … 16."""
    return _every_hop(context, "k_hop_16")


def _every_hop(context: ExperimentContext, name: str) -> list[Finding]:
    recipe = RECIPES[f"{name}_direct"]
    model, task = context.model(f"{name}_direct"), KHop(**recipe.task_options)
    findings, data = [], {}
    with context.watch("measuring", task.hops) as advance:
        for hops in range(1, task.hops + 1):
            held_out = task.sample(context.profile.samples, (0, 2), split="test", hops=hops)
            error = measure(model, task, draws=context.profile.draws, data=held_out)
            findings.append(Finding(f"k = {hops}", error.mean, at_most=0.05, spread=error.spread))
            data[str(hops)] = {"error": error.mean, "spread": error.spread}
            advance()
    return context.write(name, findings, data)


def ablations(context: ExperimentContext) -> list[Finding]:
    """Induction heads trained directly, with one thing changed at a time: the error with hashing."""
    base = RECIPES["induction_direct"]
    learned = replace(base.model, positions="learned", rotary=(False, False))

    def at_noise(first: float, last: float) -> Recipe:
        return replace(base, stages=tuple(replace(stage, noise=(first, last)) for stage in base.stages))

    variants = {
        "the recipe": base,
        "one head": replace(base, model=replace(base.model, heads=1)),
        "learned positions for rotary": replace(base, model=learned),
        "values without positions": replace(base, model=replace(base.model, recency=(0.0, 0.0))),
        "no noise": at_noise(0.0, 0.0),
        "all noise from the start": at_noise(0.95, 0.95),
    }
    findings = []
    for name, recipe in variants.items():
        model = context.model("induction_direct" if recipe is base else "ablation " + name, recipe=recipe)
        cells = [_with_tables(recipe.model.attention, tables) for tables in ((32, 4), (96, 32))]
        for cell, error in zip(("(32, 4)", "(96, 32)"), context.errors(model, recipe.make_task(), cells), strict=True):
            findings.append(Finding(f"{name}: {cell}", error.mean, spread=error.spread))
    return context.write("ablations", findings, {one.what: one.measured for one in findings})


def recall(context: ExperimentContext) -> list[Finding]:
    """Associative recall, trained at N = 256 and measured at N = 256, 4,096 and 16,384: the share of right answers."""
    findings, data = [], {}
    for name in ("recall_anna", "recall_softmax", "recall_low_rank"):
        model, recipe, lengths = context.model(name), RECIPES[name], context.profile.lengths
        with context.watch("measuring", len(lengths)) as advance:
            for n in lengths:
                # As many pairs per token as in training: a quarter of the tokens are keys.
                task = AssociativeRecall(**(recipe.task_options | {"n": n, "pairs": n // 4}))
                held_out = task.sample(max(1, min(context.profile.samples, 64 * 256 // n)), (0, 2), split="test")
                draws = context.profile.draws if name == "recall_anna" else 1
                error = measure(model, task, draws=draws, data=held_out, batch=max(1, 4096 // n))
                what = f"{name.removeprefix('recall_')}, accuracy at N = {n:,}"
                findings.append(Finding(what, 1 - error.mean, spread=error.spread))
                data[f"{name} {n}"] = {"accuracy": 1 - error.mean, "spread": error.spread}
                advance()
    return context.write("recall", findings, data)


def recall_state(context: ExperimentContext) -> list[Finding]:
    """Recall of 16 and 32 pairs: ANNA beside low rank, whose state has a fixed size, with few and many features."""
    findings, data = [], {}
    for (title, mechanism), pairs in product(STATES.items(), (16, 32)):
        recipe, name, means = recall_state_recipe(pairs, mechanism), f"{title}, {pairs} pairs", []
        for seed in range(3):
            model = context.model(f"recall_state {title} {pairs}", seed=seed, recipe=recipe)
            means += [one.mean for one in context.errors(model, recipe.make_task(), [recipe.model.attention])]
        data[name], of_seeds = means, Error(tuple(means))
        findings.append(Finding(name, of_seeds.mean, spread=of_seeds.spread))
    return context.write("recall_state", findings, data)


EXPERIMENTS: dict[str, Callable[[ExperimentContext], list[Finding]]] = {
    "match2_paper": match2_paper,
    "match2_direct": match2_direct,
    "induction_heads": induction_heads,
    "betas": betas,
    "families": families,
    "k_hop": k_hop,
    "k_hop_16": k_hop_16,
    "ablations": ablations,
    "recall": recall,
    "recall_state": recall_state,
}


def _hashed(family: str, tables: tuple[int, ...], hashes: tuple[int, ...]) -> tuple[AttentionConfig, ...]:
    """ANNA with this family in every layer."""
    return tuple(AnnaConfig(family, count, z) for count, z in zip(tables, hashes, strict=True))


def _with_tables(attention: tuple[AttentionConfig, ...], tables: tuple[int, ...]) -> tuple[AttentionConfig, ...]:
    """The hashed mechanisms of a recipe with other numbers of tables."""
    changed = []
    for one, count in zip(attention, tables, strict=True):
        assert isinstance(one, AnnaConfig | LatestMatchConfig)
        changed.append(replace(one, tables=count))
    return tuple(changed)


def _hash_choices(tables: tuple[int, ...]) -> list[tuple[AttentionConfig, ...]]:
    """ANNA with these numbers of tables per layer, for every choice of z = 1 … 4 in each layer, as in the paper."""
    return [
        tuple(AnnaConfig("hyperplane", count, z) for count, z in zip(tables, hashes, strict=True))
        for hashes in product(range(1, 5), repeat=len(tables))
    ]
