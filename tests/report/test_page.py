"""The page as text: what it holds, and what it refuses."""

import json
import os
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from annattn.drawing import Axis, Line, chart
from annattn.errors import InputError
from annattn.report import page, read_results, write_file
from annattn.report.page import headlines, percent


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def text(results) -> str:
    return page(results)


def test_the_page_asks_for_nothing_outside_itself(text):
    for tag, attributes in Elements(text).found:
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"@import|url\(", text)
    assert "default-src 'none'" in text
    assert len(text) < 500_000


def test_identifiers_are_unique_and_labels_point_at_something(text):
    found = Elements(text).found
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in found:
        for name in ("for", "aria-labelledby", "aria-describedby"):
            assert attributes.get(name) in (None, *ids)
    assert all("aria-label" in attributes for tag, attributes in found if attributes.get("role") == "img")
    assert all("scope" in attributes for tag, attributes in found if tag == "th")
    tables = sum(tag == "table" for tag, _ in found)
    assert tables == sum(tag == "caption" for tag, _ in found) > 3


def test_the_machine_and_versions_are_named(text, results):
    about = results["machine"]
    for stated in (about["processor"], about["measured"], *about["versions"].values()):
        assert stated in text


def test_headlines_are_the_measured_numbers(results):
    found = {what: figure for figure, what in headlines(results)}
    assert found["theorems hold: built, run and measured"] == "2 of 2"
    ratio = results["speed"]["rows"][-1]["ratio"]["softmax / ANNA"]
    said = "the speed of torch's softmax attention, at 512 tokens with 2 tables of 4 hashes: 32 keys per bucket"
    assert found[said].replace(",", "").startswith(f"{ratio:.1f}"[:2])  # 1,476× on a machine that pauses
    assert percent(results["models"]["models"][0]["trained"]["mean"]) in found.values()


def test_a_theorem_that_does_not_hold_is_seen(results):
    broken = json.loads(json.dumps(results))
    row = broken["theorems"]["rows"][0]
    row["holds"] = False
    assert 'class="no">NO<' in page(broken)
    assert 'class="no">NO<' not in page(results)


def test_names_are_text_and_never_markup(results):
    hostile = json.loads(json.dumps(results))
    hostile["machine"]["processor"] = "<script>alert(1)</script>"
    hostile["attention"]["input"][0] = "</script><b>"
    text = page(hostile)
    assert "<script>alert" not in text
    assert "</script><b>" not in text


def test_results_that_lack_something_are_refused(results, tmp_path):
    path = tmp_path / "report.json"
    for content, message in (
        ("{", "report.json"),
        ("[]", "report.json, expected the results file"),
        ('{"format": 2}', "report.json in another format"),
        ('{"format": 1}', "without a machine and a part that was measured"),
        ('{"format": 1, "machine": {}}', "without a machine and a part that was measured"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            read_results(path)
    with pytest.raises(InputError, match="expected a file that exists"):
        read_results(tmp_path / "none.json")
    lacking = json.loads(json.dumps(results))
    del lacking["speed"]["rows"][0]["seconds"]["anna"]
    with pytest.raises(InputError, match="everything that `annattn demo` measures"):
        page(lacking)


def test_saved_results_give_the_same_page(results, text, tmp_path):
    path = write_file(json.dumps(results), tmp_path / "report.json")
    assert page(read_results(path)) == text


@pytest.mark.parametrize("wrong", [KeyboardInterrupt, OSError])
def test_a_file_is_written_whole_or_not_at_all(wrong, tmp_path, monkeypatch):
    old = write_file("old", tmp_path / "report.html")

    def stop(*args):
        raise wrong("stopped")

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(InputError if wrong is OSError else wrong):
        write_file("new", old)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert old.read_text() == "old"


def test_points_lie_where_the_axes_say():
    ticks = [(1.0, "1"), (10.0, "10"), (100.0, "100")]
    line = Line("a", [(1, 1), (10, 10), (100, 100)], kind="accent", ring=10)
    drawn = chart(
        [line], Axis("x", ticks, True), Axis("y", ticks, True), title="t", description="d", width=400, height=300
    )
    dots = re.findall(r'class="dot accent" cx="([\d.]+)" cy="([\d.]+)"', drawn)
    (x0, y0), (x1, y1), (x2, y2) = [(float(x), float(y)) for x, y in dots]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    rows = sorted(float(y) for y in re.findall(r'class="grid" d="M[\d.]+ ([\d.]+)', drawn))
    assert rows == pytest.approx([y2, y1, y0], abs=0.1)
    assert re.findall(r'class="ring" cx="([\d.]+)"', drawn) == [dots[1][0]]


def test_labels_of_lines_that_end_together_do_not_cover_each_other():
    ticks = [(0.0, "0"), (1.0, "1")]
    lines = [Line(f"line {i}", [(0, 0), (1, 0.001 * i)]) for i in range(5)]
    drawn = chart(lines, Axis("x", ticks), Axis("y", ticks), title="t", description="d", width=400, height=300)
    heights = sorted(float(y) for y in re.findall(r'class="name plain" x="[\d.]+" y="([\d.]+)"', drawn))
    assert min(b - a for a, b in pairwise(heights)) >= 14.9
    assert heights[-1] <= 300
