"""What the project says of itself is the same everywhere, and what it ships is complete and works."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePosixPath

import pytest
import yaml

import annattn

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def yaml_of(name: str):
    return yaml.safe_load((ROOT / name).read_text())


def test_the_project_has_one_address():
    urls = PROJECT["urls"]
    assert set(urls) == {"Homepage", "Documentation", "Repository", "Changelog", "Issues"}
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    assert yaml_of("CITATION.cff")["repository-code"] == urls["Repository"]
    assert re.findall(r"^repo_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE) == [urls["Repository"]]


def test_the_version_is_the_same_in_the_code_the_citation_and_the_changelog():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == yaml_of("CITATION.cff")["version"] == annattn.__version__


def test_every_supported_python_runs_the_checks_on_linux_and_macos():
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={versions[0]}"
    jobs = yaml_of(".github/workflows/ci.yml")["jobs"]
    matrix = jobs["checks"]["strategy"]["matrix"]
    assert matrix["python"] == versions
    assert matrix["os"] == ["ubuntu-latest", "macos-latest"]
    assert ".ci/run" in [step.get("run") for step in jobs["checks"]["steps"]]
    assert "python -m build --no-isolation" in [step.get("run") for step in jobs["package"]["steps"]]


def test_hooks_run_the_tools_of_make_lint():
    linted = re.findall(r"^\t\$\(BIN\)/(\S+ \S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (local,) = yaml_of(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    for hook in local["hooks"]:
        assert hook["language"] == "system"
        assert any(hook["entry"].startswith(f".venv/bin/{command}") for command in linted), hook["entry"]


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == targets
    assert set(re.findall(r'echo "make ([a-z-]+) ', makefile)) == targets - {"help"}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the source distribution and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built / f"annattn-{annattn.__version__}-py3-none-any.whl") as opened:
        yield opened


def sources(folder: str) -> set[str]:
    """The files below a folder of the checkout, but for what running them leaves behind."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_the_wheel_holds_the_library_and_its_data_and_nothing_else(wheel):
    held = set(wheel.namelist())
    info = f"annattn-{annattn.__version__}.dist-info"
    about = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert held == about | {name.removeprefix("src/") for name in sources("src/annattn")}
    page = {f"annattn/report/page.{kind}" for kind in ("html", "css", "js")}
    trained = {name for name in held if name.startswith("annattn/experiments/trained/")}
    assert {"annattn/py.typed"} | page <= held
    assert {PurePosixPath(name).suffix for name in trained} == {".csv", ".json", ".safetensors"}


def test_the_wheel_says_what_the_project_says(wheel):
    said = message_from_bytes(wheel.read(f"annattn-{annattn.__version__}.dist-info/METADATA"))
    assert (said["Name"], said["Version"]) == ("annattn", annattn.__version__)
    assert (said["Requires-Python"], said["License-Expression"]) == (PROJECT["requires-python"], PROJECT["license"])
    assert set(said.get_all("Classifier", [])) == set(PROJECT["classifiers"])
    assert set(said.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert dict(url.split(", ") for url in said.get_all("Project-URL", [])) == PROJECT["urls"]


def test_the_source_distribution_holds_what_tests_and_docs_need_and_nothing_else(built):
    root = PurePosixPath(f"annattn-{annattn.__version__}")
    with tarfile.open(built / f"{root}.tar.gz") as opened:
        held = {PurePosixPath(name).relative_to(root).as_posix() for name in opened.getnames()}
    folders = (".ci", ".github/workflows", "benchmarks", "docs", "src", "tests")
    below = set().union(*(sources(folder) for folder in folders))
    assert {name for name in held if "/" in name} == below
    assert {name for name in held if "/" not in name and not name.endswith(".md")} == {
        *(".gitignore", ".pre-commit-config.yaml", "CITATION.cff", "LICENSE", "Makefile", "PKG-INFO"),
        *("conftest.py", "constraints.txt", "mkdocs.yml", "pyproject.toml"),
    }
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} <= held


@pytest.mark.slow
def test_the_wheel_works_where_there_is_nothing_else_of_the_project(wheel, tmp_path):
    wheel.extractall(tmp_path)
    program = """
import sys

sys.path.insert(0, sys.argv[1])
import annattn
from annattn.experiments.checkpoints import kept, trained
from annattn.report.page import page

assert annattn.__file__.startswith(sys.argv[1]), annattn.__file__
models = [trained(name) for name in kept()]
print(annattn.__version__, len(models))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    models = len(list((ROOT / "src/annattn/experiments/trained").glob("*.safetensors")))
    assert done.stdout.split() == [annattn.__version__, str(models)]
