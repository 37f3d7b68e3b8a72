"""Sections from benchmarks: there when they were measured, and files of another kind are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from annattn.errors import InputError
from annattn.report import page
from annattn.report.benchmarks import read_grid, read_scale, scale_chart

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
READERS = {"grid": read_grid, "scale": read_scale}


@pytest.fixture
def measured() -> dict[str, Any]:
    return {name: read(FIGURES / f"{name}.json") for name, read in READERS.items()}


def test_the_sections_are_there_only_when_they_were_measured(results, measured):
    text = page(results)
    assert 'id="grid"' not in text
    assert 'id="scale"' not in text
    text = page(results | measured)
    for one in measured["grid"]["results"]:
        assert f"{one['shape']['batch']} × {one['shape']['heads']} × {one['shape']['n']:,}" in text
    for row in measured["scale"]["rows"]:
        assert f"<td>{row['sent']:,}</td><td>{row['ring']:,}</td>" in text


def test_what_is_slower_than_softmax_has_the_other_colour(results, measured):
    grid = measured["grid"]
    grid["results"] = grid["results"][:1]
    for number, (name, cell) in enumerate(grid["results"][0]["columns"].items()):
        grid["results"][0]["columns"][name] = cell | {"ratio": (0.5, 1.0, 4.0)[number]}
    text = page(results | {"grid": grid})
    cells = [part.split('"')[0] for part in text.split('<td class="')[1:] if part.startswith(("slower", "share"))]
    grid_cells = [one for one in cells if one in ("slower", "share")][:3]
    assert grid_cells == ["slower", "share", "share"]
    assert ">0.50× " in text


def test_the_chart_says_what_it_shows(measured):
    drawn = scale_chart(measured["scale"], width=760)
    last = measured["scale"]["rows"][-1]
    assert f"ANNA sends {last['sent']:,} bytes, a ring {last['ring']:,}" in drawn


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", json.dumps({"machine": {}})])
def test_another_file_is_refused(name, content, tmp_path):
    path = tmp_path / "some.json"
    path.write_text(content)
    with pytest.raises(InputError, match=name):
        READERS[name](path)
    with pytest.raises(InputError, match=name):
        READERS[name](tmp_path / "missing.json")
