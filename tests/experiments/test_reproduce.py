"""Every experiment from nothing to numbers and pictures, with hardly any steps."""

import json
from contextlib import contextmanager
from dataclasses import asdict, replace
from xml.etree import ElementTree

import pytest
import torch

from annattn.attention import BasedConfig, BasedFeatures, PerformerConfig
from annattn.experiments import RECIPES, Error, grid, reproduce
from annattn.experiments.recipes import STATES, recall_state_recipe
from annattn.experiments.reproduce import EXPERIMENTS, PROFILES, ExperimentContext, Finding, Profile
from annattn.nn import AnnaConfig, Transformer

HARDLY = Profile({"match2_paper": 0.0001}, 0.0005, 2, 8, 2, first=(32, 96), second=(4, 32), lengths=(64,))
FIGURES = {
    "match2_paper": ["match2_paper.svg"],
    "families": ["families.svg"],
    "induction_heads": ["induction_direct.svg", "induction_latest.svg", "induction_paper.svg"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_writes_what_it_found(name, tmp_path):
    asked, done = [], []

    @contextmanager
    def watch(what, parts):
        asked.extend([what] * parts)
        yield lambda: done.append(what)

    findings = EXPERIMENTS[name](ExperimentContext(tmp_path, HARDLY, watch))
    assert findings
    assert done == asked
    assert all(0 <= one.measured <= 4 for one in findings)
    assert any(one.spread is not None for one in findings)
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["findings"] == [asdict(one) for one in findings]
    drawn = [name for figure in FIGURES.get(name, []) for name in (figure, figure.replace(".svg", "_dark.svg"))]
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == sorted(drawn)
    for figure in tmp_path.glob("*.svg"):
        assert ElementTree.parse(figure).getroot().tag.endswith("svg")


def test_z_is_chosen_on_other_sequences_than_it_is_measured_on(tmp_path, monkeypatch):
    recipe = RECIPES["match2_paper"]
    model, task, looked = Transformer(recipe.model), recipe.make_task(), []

    def short_look(model, task, *, draws, data):
        assert set(task.split_of(data.inputs)) == {"validation"}
        (one,) = model.config.attention
        looked.append((one.tables, one.hashes))
        return Error((abs(one.hashes - 3) / 10,))

    monkeypatch.setattr(reproduce, "measure", short_look)
    (found,) = ExperimentContext(tmp_path, HARDLY).best(model, task, [reproduce._hash_choices((2,))])
    assert looked == [(2, 1), (2, 2), (2, 3), (2, 4)]
    assert [found] == grid(model, task, [(AnnaConfig("hyperplane", 2, 3),)], samples=8, draws=2)
    assert reproduce._hash_choices((32, 4)) == [
        (AnnaConfig("hyperplane", 32, a), AnnaConfig("hyperplane", 4, b)) for a in range(1, 5) for b in range(1, 5)
    ]


def test_recall_with_a_state_differs_in_layer_2_alone_and_names_its_features():
    made = {title: recall_state_recipe(16, mechanism) for title, mechanism in STATES.items()}
    near = made["softmax"].model.attention[0]
    for title, recipe in made.items():
        assert recipe.model == replace(made["softmax"].model, attention=(near, STATES[title]))
        assert recipe.task_options == made["softmax"].task_options
        assert (recipe.steps, recipe.batch, recipe.rate) == (1500, 16, 3e-3)
        assert {one for stage in recipe.stages for one in stage.attention[:1]} == {near}
    x, counts = torch.ones(1, 64 // 2), {}
    for title, mechanism in STATES.items():
        if isinstance(mechanism, PerformerConfig):
            counts[title] = mechanism.features(32, seed=0).query(x).shape[-1]
        elif isinstance(mechanism, BasedConfig):
            counts[title] = BasedFeatures().query(x[:, : mechanism.feature_dim]).shape[-1]
    assert set(counts) == set(STATES) - {"softmax", "ANNA"}
    assert all(f"{count:,} features" in title for title, count in counts.items())


def test_what_was_asked_decides():
    assert Finding("error", 0.05, at_most=0.05).holds
    assert not Finding("error", 0.051, at_most=0.05).holds
    assert Finding("error", 0.9).holds


def test_the_profiles_are_these():
    assert set(PROFILES) == {"quick", "full"}
    full = PROFILES["full"]
    assert full.seeds == 10
    assert full.draws == 10
    assert (full.first, full.second) == (tuple(range(32, 97, 8)), tuple(range(4, 33, 4)))
    assert {round(RECIPES[name].shortened(share).steps) for name, share in full.share.items()} == {400_000}
    assert {name for name in RECIPES if "induction_paper" in name} == full.share.keys()
    assert full.others == 1
    assert not full.leaves_out
    assert set(PROFILES["quick"].leaves_out) < EXPERIMENTS.keys()
    assert set(PROFILES["quick"].share) < RECIPES.keys()
    assert RECIPES["match2_paper"].steps == 20_000
