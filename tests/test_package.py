"""What the project says of itself is the same everywhere."""

import re
import tomllib
from pathlib import Path

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
