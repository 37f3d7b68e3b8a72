"""The frontier on the page: there when it was measured, and drawn from the numbers."""

import copy
import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from annattn.drawing import write_figure
from annattn.drawing.chart import Axis
from annattn.drawing.scatter import Point, _boxes, _labels, scatter
from annattn.errors import InputError
from annattn.experiments.comparison import CONTENDERS, PROFILES, summary
from annattn.report import page
from annattn.report.comparison import error_text, frontier_chart, panel_columns, panel_points, read_comparison


@pytest.fixture
def comparison() -> dict[str, Any]:
    """Each contender slower than the one before; errors fall at first, and then rise."""
    found = summary(PROFILES["small"], {})
    for at, row in enumerate(found["rows"]):
        for name, cell in row["cells"].items():
            if "not_run" in cell:
                row["cells"][name] = {"error": abs(at - 4) / 20, "spread": 0.0, "seeds": 1, "rate": 1, "rates_tried": 1}
    costs = {
        name: {"seconds_per_token": {"1024": 1e-6, "16384": 1e-6 * (1 + at)}, "state_bytes": {"1024": 8, "16384": 8}}
        for at, name in enumerate(CONTENDERS)
    }
    return {
        "profile": "small",
        **found,
        "costs": {"contenders": costs, "machine": {"processor": "an abacus", "measured": "today"}},
    }


def test_the_section_is_there_only_when_it_was_measured(results, comparison):
    assert 'id="frontier"' not in page(results)
    text = page(results | {"comparison": comparison})
    assert 'id="frontier"' in text
    assert "measured on an abacus, today" in text
    reasons = [cell["missing"] for row in comparison["rows"] for cell in row["cells"].values() if "missing" in cell]
    assert text.count("<td>no causal form</td>") == reasons.count("no causal form") > 0


def test_contenders_without_all_errors_are_left_out_of_a_panel(comparison):
    causal = panel_points(comparison, is_causal=True)
    assert set(CONTENDERS) - set(causal) == {"linformer", "kdeformer", "kdeformer_sparse"}
    assert "latest_match" not in panel_points(comparison, is_causal=False)


def test_a_column_counts_once_everybody_has_run(comparison):
    before = panel_points(comparison, is_causal=True)
    one = copy.deepcopy(comparison)
    one["rows"][0]["cells"]["recall"] = {"not_run": True}
    one["rows"][1]["cells"]["induction"]["error"] = 1.0
    assert "recall" not in panel_columns(one, is_causal=True)
    after = panel_points(one, is_causal=True)
    assert after["softmax"] == pytest.approx(before["softmax"])
    assert after["anna_paper"][1] > before["anna_paper"][1]


def test_the_frontier_is_drawn_through_whoever_nobody_beats(comparison):
    text = frontier_chart(comparison, is_causal=True, width=760)
    assert text is not None
    best = ["softmax", "anna_paper", "anna_direct", "latest_match", "window_anna"]
    assert "On the frontier: " + ", ".join(CONTENDERS[name].title.replace("'", "&#x27;") for name in best) in text
    assert text.count("<circle") == 15


@pytest.mark.parametrize("micros", [0.15, 1.0, 4.7, 19.0, 21.4, 46.0, 101.0])
def test_no_point_is_outside_of_the_axes(comparison, micros):
    comparison["costs"]["contenders"]["hyper"]["seconds_per_token"]["16384"] = micros * 1e-6
    text = frontier_chart(comparison, is_causal=True, width=760)
    assert text is not None
    left, right = min(map(float, re.findall(r'd="M([\d.]+) [\d.]+H', text))), 760 - 16
    centres = [float(x) for x in re.findall(r'<circle[^>]* cx="(-?[\d.]+)"', text)]
    assert len(centres) == 15
    assert left <= min(centres)
    assert max(centres) <= right


def test_there_is_no_chart_before_a_column_is_complete(comparison):
    for row in comparison["rows"]:
        row["cells"] = {name: cell if "missing" in cell else {"not_run": True} for name, cell in row["cells"].items()}
    assert frontier_chart(comparison, is_causal=False, width=760) is None


def test_there_is_no_chart_without_costs(comparison):
    comparison["costs"] = None
    assert frontier_chart(comparison, is_causal=True, width=760) is None


def test_labels_do_not_cover_each_other():
    places = [(100.0 + 3 * number, 100.0 + 2 * (number % 3)) for number in range(8)]
    points = [Point("a label", *place) for place in places]
    found = _labels(points, places, _boxes(places, []), 0, 400, 300)
    heights = sorted((anchor, py) for _, py, anchor in found)
    assert all(b[1] - a[1] >= 13 for a, b in pairwise(heights) if a[0] == b[0])


def test_labels_keep_off_the_line():
    place, line = (100.0, 100.0), [(100.0, 100.0), (300.0, 100.0)]
    point = Point("a label", *place, kind="accent", is_frontier=True)
    free = _labels([point], [place], _boxes([place], []), 0, 400, 300)
    beside = _labels([point], [place], _boxes([place], line), 0, 400, 300)
    assert free == [(108.0, 104.0, "start")]
    assert beside[0][2] == "end" or abs(beside[0][1] - 4 - 100) > 7


def test_text_in_a_chart_is_escaped():
    ticks = [(0.0, "0"), (1.0, "1")]
    text = scatter(
        [Point("<b>", 0, 1)], Axis("x", ticks), Axis("y", ticks), title="t", description="d", width=99, height=99
    )
    assert "<b>" not in text


@pytest.mark.parametrize("content", [None, "{", "[]", '{"rows": []}'])
def test_another_file_is_refused(content, tmp_path):
    path = tmp_path / "comparison.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match="comparison"):
        read_comparison(path)


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and dict in the data, with each of its keys."""
    for key in list(data) if isinstance(data, dict) else range(len(data) if isinstance(data, list) else 0):
        yield data, key
        yield from _places(data[key])


def test_an_edited_file_is_refused_or_shown(comparison, tmp_path):
    # One task, three contenders, one of them without a causal form: all that there is to edit, and quick.
    small = copy.deepcopy(comparison)
    small["columns"] = small["columns"][:2]
    small["rows"] = [row for row in small["rows"] if row["name"] in ("softmax", "anna_direct", "linformer")]
    names = {row["name"] for row in small["rows"]}
    small["costs"]["contenders"] = {name: small["costs"]["contenders"][name] for name in names}
    for row in small["rows"]:
        row["cells"] = {column["name"]: row["cells"][column["name"]] for column in small["columns"]}
    path, refused, shown = tmp_path / "comparison.json", 0, 0
    for holder, key in list(_places(small)):
        before = holder[key]
        for edit in (None, "<b>", -1, []):
            holder[key] = edit
            path.write_text(json.dumps(small))
            holder[key] = before
            try:
                found = read_comparison(path)
            except InputError:
                refused += 1
            else:
                shown += 1
                charts = [frontier_chart(found, is_causal=is_causal, width=760) for is_causal in (True, False)]
                assert not any("<b>" in chart for chart in charts if chart)
    assert min(refused, shown) > 50


@pytest.mark.parametrize("edit", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None])
def test_errors_are_shares_and_times_are_positive(edit, comparison, tmp_path):
    path, softmax = tmp_path / "comparison.json", comparison["rows"][0]["cells"]["match2"]
    times = comparison["costs"]["contenders"]["softmax"]["seconds_per_token"]
    for where, key in ((softmax, "error"), (comparison["columns"][0], "guess"), (times, "1024")):
        if where is times and edit == 1.1:
            continue
        before, where[key] = where[key], edit
        path.write_text(json.dumps(comparison))
        where[key] = before
        with pytest.raises(InputError, match=r"comparison\.json, damaged"):
            read_comparison(path)


def test_the_published_numbers_are_those_of_the_published_file(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    found, text = read_comparison(docs / "figures" / "comparison.json"), (docs / "comparison.md").read_text()
    titles = " | ".join(column["title"] for column in found["columns"])
    assert f"| contender | {titles} |\n" in text
    guesses = " | ".join(f"{column['guess']:.3f}" for column in found["columns"])
    assert f"| best constant answer | {guesses} |\n" in text
    assert f"The whole profile {found['profile']}: {found['runs']} runs." in text
    for row in found["rows"]:
        errors = [error_text(row["cells"][column["name"]]) for column in found["columns"]]
        assert f"| {' | '.join([row['title'], *errors])} |\n" in text
        cost = found["costs"]["contenders"][row["name"]]
        times = [f"{1e6 * cost['seconds_per_token'][n]:.2f}" for n in ("1024", "16384")]
        states = [cost["state_bytes"][n] for n in ("1024", "16384")]
        kept = ["no causal form" if state is None else f"{state:,}" for state in states]
        assert f"| {' | '.join([row['title'], *times, *kept])} |\n" in text
    for is_causal, name in ((True, "frontier_causal"), (False, "frontier")):
        draw = partial(frontier_chart, found, is_causal=is_causal, width=760)
        write_figure(lambda theme, draw=draw: draw(theme=theme) or "", tmp_path / f"{name}.svg")
    assert list(tmp_path.iterdir())
    for drawn in tmp_path.iterdir():
        assert drawn.read_text() == (docs / "figures" / drawn.name).read_text(), drawn.name


def test_what_was_written_is_read(comparison, tmp_path):
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps(comparison))
    assert read_comparison(path) == comparison
