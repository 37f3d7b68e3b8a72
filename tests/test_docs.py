"""Every block of the README and the docs runs or is checked, and the site builds."""

import contextlib
import doctest
import importlib
import importlib.util
import io
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cyclopts
import pytest
from torch.distributed.run import get_args_parser

from annattn.attention import MECHANISMS
from annattn.cli.app import make_app
from annattn.kernels import BACKENDS
from annattn.lsh import FAMILIES
from annattn.mpc import ENGINES
from annattn.mpc.protocols import PROTOCOLS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

FORGIVING = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
KINDS = ("python", "sh", "text")
REFERENCE = (
    *("attention", "cache", "compiler", "distributed", "errors", "experiments", "integrations.huggingface"),
    *("lsh", "mpc", "mpc.programs", "mpc.protocols", "nn", "outofcore", "tasks", "theorems"),
)


@dataclass(frozen=True)
class Block:
    """A fenced block, and what the page shows as its output: the `text` block right after it."""

    kind: str
    body: str
    line: int
    shown: str | None = None


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    found = list(re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    for at, match in enumerate(found):
        following = found[at + 1] if at + 1 < len(found) else None
        shown = None
        if following and following[1] == "text" and not text[match.end() : following.start()].strip():
            shown = following[2]
        yield Block(match[1], match[2], text[: match.start()].count("\n") + 2, shown)


def same(shown: str, printed: str) -> bool:
    """Equal but for white space; `...` stands for anything."""
    return doctest.OutputChecker().check_output(shown, printed, FORGIVING)


@pytest.fixture
def registries():
    """Pages show how to add to the library's dicts; what they add goes away again."""
    every: list[dict[str, Any]] = [BACKENDS, ENGINES, FAMILIES, MECHANISMS, PROTOCOLS]
    kept = [(registry, dict(registry)) for registry in every]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)
    # A page may have started Ray, and other tests start their own.
    if "ray" in sys.modules:
        importlib.import_module("ray").shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("registries")
@by_page
def test_python_on_a_page_runs_in_order_and_prints_what_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in blocks_of(page):
        if program := re.match(r"# (\w+\.py)\n", block.body if block.kind == "python" else ""):
            (tmp_path / program[1]).write_text(block.body)  # torchrun starts it, further down on the page
        elif block.kind == "sh" and block.body.startswith("torchrun") and block.shown is not None:
            (command,) = commands_of(block)
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", *command[1:]],
                capture_output=True,
                text=True,
            )
            assert same(block.shown, done.stdout), f"line {block.line} printed:\n{done.stdout}{done.stderr}"
        elif block.kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * (block.line - 1) + block.body, str(page), "exec"), names)
            if block.shown is not None:
                assert same(block.shown, printed.getvalue()), f"line {block.line} printed:\n{printed.getvalue()}"
    written = [thing for thing in names.values() if isinstance(thing, type | FunctionType)]
    for thing in [thing for thing in written if thing.__module__ == "page"]:
        for example in doctest.DocTestFinder().find(thing, module=False, globs=dict(names)):
            failed, _ = doctest.DocTestRunner(optionflags=FORGIVING).run(example)
            assert not failed, f"the example of {example.name}"


@by_page
def test_every_block_is_of_a_kind_that_is_checked(page):
    before = None
    for block in blocks_of(page):
        assert block.kind in KINDS, f"line {block.line}: a block of kind {block.kind!r}"
        if block.kind == "text":
            assert getattr(before, "shown", None) == block.body, f"line {block.line}: the output of nothing"
        before = block


@by_page
def test_commands_on_a_page_exist_with_the_options_they_are_given(page):
    for block in blocks_of(page):
        for command in commands_of(block) if block.kind == "sh" else ():
            check_command(command)


@by_page
def test_commands_with_an_output_print_it(page, tmp_path):
    for block in blocks_of(page):
        if block.kind == "sh" and block.shown is not None and not block.body.startswith("torchrun"):
            (command,) = commands_of(block)
            assert command[0] == "annattn", "only annattn's own output is shown"
            done = subprocess.run(
                [sys.executable, "-c", "from annattn.cli import main; main()", *command[1:]],
                cwd=tmp_path,
                capture_output=True,
                text=True,
            )
            assert same(block.shown, done.stdout), f"line {block.line} printed:\n{done.stdout}{done.stderr}"


def commands_of(block: Block) -> list[list[str]]:
    joined = block.body.replace("\\\n", " ")
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def check_command(command: list[str]) -> None:
    program, *arguments = command
    if program == "annattn":
        make_app(arguments).parse_args(arguments, print_error=False, exit_on_error=False)
    elif program == "make":
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        for argument in arguments:
            assert "=" in argument or argument in targets, f"make has no target {argument!r}"
    elif program == "torchrun":
        known = set(get_args_parser()._option_string_actions)
        assert all(word in known for word in arguments if word.startswith("-") and "annattn" not in arguments)
        if "annattn" in arguments:
            place = arguments.index("annattn")
            assert all(word in known for word in arguments[:place] if word.startswith("-"))
            check_command(arguments[place:])
    elif program == "python":
        assert arguments[0] == "-m"
        assert importlib.util.find_spec(arguments[1]), command
    else:
        assert command[:2] == ["pip", "install"], f"nothing checks {shlex.join(command)!r}"


@pytest.mark.parametrize(
    "wrong", ["annattn dance", "annattn theorems --quik", "make tea", "python -m annattn.no", "ls"]
)
def test_a_command_that_does_not_exist_is_found_out(wrong):
    with pytest.raises((AssertionError, ModuleNotFoundError, cyclopts.CycloptsError)):
        check_command(wrong.split())


@by_page
def test_no_sentence_is_cut_by_a_line_that_begins_with_a_number_and_a_dot(page):
    # Markdown makes a list of it, and the number disappears.
    before = 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if found := re.match(r" *(\d+)\. ", line):
            assert int(found[1]) in (1, before + 1), f"line {number} of the file begins a list with {found[1]}"
            before = int(found[1])


@by_page
def test_names_of_the_library_on_a_page_are_there(page):
    for name in re.findall(r"`(?:aa|annattn)\.([\w.]+)", page.read_text()):
        pkgutil.resolve_name(f"annattn.{name}")


@by_page
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The pages as a site, built without a warning."""
    pytest.importorskip("material", reason="pip install 'annattn[docs]' brings mkdocs-material")
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: warnings that are not printed are not counted either.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # Without the theme's own announcement.
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_formulas_are_drawn_and_none_is_left_as_it_was_written(site):
    assert (site / "semantics.html").read_text().count("<math") > 10
    for page in site.rglob("*.html"):
        assert "arithmatex" not in page.read_text(), page


@pytest.mark.slow
def test_the_name_of_an_option_and_a_percentage_stay_on_one_line(site):
    page = (site / "real_text.html").read_text()
    assert '<span class="whole">--facts</span> 4096' in page
    assert "99.95&nbsp;%" in page
    assert "97.2 ±&nbsp;0.5" in page


@pytest.mark.slow
def test_every_figure_has_a_dark_variant_and_the_site_shows_both(site):
    figures = {path.stem for path in (ROOT / "docs" / "figures").glob("*.svg")}
    assert {f"{name}_dark" for name in figures if not name.endswith("_dark")} == {
        name for name in figures if name.endswith("_dark")
    }
    page = (site / "performance.html").read_text()
    assert "figures/grid.svg#only-light" in page
    assert "figures/grid_dark.svg#only-dark" in page


@pytest.mark.slow
def test_search_works_from_disk_and_the_site_asks_nothing_of_the_network(site, browser):
    opened, asked = browser.new_page(), []
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto((site / "index.html").as_uri())
    # The theme shows it once the index is read.
    opened.locator("[data-md-component=search]").wait_for()
    opened.locator(".md-search__input").click()
    opened.keyboard.type("latest match cache")
    opened.locator(".md-search-result__item").first.wait_for()
    opened.close()
    assert asked
    assert [address for address in asked if not address.startswith("file:")] == []


@pytest.mark.slow
def test_the_site_needs_no_other_host_and_has_every_public_name(site):
    fetched = r"<(?:script|img|iframe|source|link)[^>]*\s(?:src|href)=\"((?:https?:)?//[^\"]*)\""
    for page in site.rglob("*.html"):
        assert not re.findall(fetched, page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet
    anchors = set()
    for page in (site / "api").glob("*.html"):
        anchors |= set(re.findall(r'id="([\w.]+)"', page.read_text()))
        assert "<blockquote" not in page.read_text(), f"{page.name}: an example is shown as a quotation"
    for name in REFERENCE:
        module = importlib.import_module(f"annattn.{name}")
        missing = [one for one in module.__all__ if not paths_of(module, one) & anchors]
        assert not missing, f"annattn.{name}: {missing}"


def paths_of(module: ModuleType, name: str) -> set[str]:
    """Where a public name may stand in the reference: as it is exported, or as it is defined."""
    thing = getattr(module, name)
    return {f"{module.__name__}.{name}", f"{getattr(thing, '__module__', None)}.{name}", getattr(thing, "__name__", "")}
