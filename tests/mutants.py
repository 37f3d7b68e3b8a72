"""Errors put into the theory, one at a time: which ones do no tests notice?

A mutant is a source file with one small error: another comparison, another operator, a number off by one, a check left
out. It never touches the files: the process that runs the tests imports the one changed module from memory. A mutant
first meets the quick tests of its file, then the quick tests of all of the theory and, if asked for, slow ones. What
survives is printed, and is either a gap in the tests or a change that makes no difference.

Not changed: texts, annotations, decorators, and what stands inside a `raise`.
"""

import argparse
import ast
import hashlib
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "annattn"
TARGETS = ("compiler", "mpc", "attention/definition.py", "attention/plan.py")
# Ray's workers import the package by themselves, so no mutant reaches them.
OUT_OF_REACH = ("mpc/engines/ray.py", "mpc/engines/ray_tasks.py")
THEORY = (
    "tests/compiler",
    "tests/mpc",
    "tests/attention/test_definition.py",
    "tests/attention/test_plan.py",
    "tests/theorems",
    *(f"src/annattn/{target}" for target in TARGETS),
)
# The tests that look at a file or folder most closely; the longest name that fits decides.
CLOSEST = {
    "attention/definition.py": "tests/attention/test_definition.py",
    "attention/plan.py": "tests/attention/test_plan.py",
    "compiler": "tests/compiler/test_to_transformer.py",
    "compiler/collision_layer.py": "tests/compiler/test_to_protocol.py",
    "compiler/low_rank_layer.py": "tests/compiler/test_to_protocol.py",
    "compiler/relu.py": "tests/compiler/test_to_module.py",
    "compiler/sparse_code.py": "tests/compiler/test_sparse_code.py",
    "compiler/to_module.py": "tests/compiler/test_to_module.py",
    "compiler/to_protocol.py": "tests/compiler/test_to_protocol.py",
    "compiler/transformer.py": "tests/compiler/test_transformer.py",
    "mpc": "tests/mpc/test_model.py",
    "mpc/engines": "tests/mpc/test_engines.py",
    "mpc/order.py": "tests/mpc/test_columnsort.py",
    "mpc/part_files.py": "tests/mpc/test_part_files.py",
    "mpc/partners.py": "tests/mpc/test_partners.py",
    "mpc/parts": "tests/mpc/test_protocols.py",
    "mpc/parts/columnsort.py": "tests/mpc/test_columnsort.py",
    "mpc/parts/copies.py": "tests/compiler/test_to_protocol.py",
    "mpc/parts/samplesort.py": "tests/mpc/test_samplesort.py",
    "mpc/parts/tree.py": "tests/mpc/test_tree.py",
    "mpc/programs": "tests/mpc/test_programs.py",
    "mpc/protocols": "tests/mpc/test_protocols.py",
}
CPU_SECONDS, MEMORY_BYTES = 60, 12 * 2**30
# Every process starts as a copy of one that has imported what does not change.
WORKERS = multiprocessing.get_context("forkserver")
WORKERS.set_forkserver_preload(["hypothesis.strategies", "numba", "pytest", "scipy.special", "torch"])

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.USub: ast.UAdd,
}
NAMES = {"max": "min", "min": "max", "any": "all", "all": "any", "maximum": "minimum", "minimum": "maximum"}


@dataclass(frozen=True)
class Mutant:
    """One error: the number of the change in a file, by the file's name below the package."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}#{self.number}"

    @property
    def module(self) -> str:
        """The name under which the file is imported."""
        return "annattn." + self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def tree(self) -> tuple[ast.Module, str]:
        """The changed module, and the changed statement before and after."""
        tree = ast.parse((PACKAGE / self.file).read_text(encoding="utf-8"))
        statement, change = list(changes(tree))[self.number]
        before = _headline(statement)
        change()
        return ast.fix_missing_locations(tree), f"line {statement.lineno}:\n  - {before}\n  + {_headline(statement)}"


def changes(tree: ast.Module) -> Iterator[tuple[ast.stmt, Callable[[], None]]]:
    """Every change to a module: the statement it is in, and a function that makes it."""
    pending: list[tuple[ast.AST, ast.stmt | None]] = [(tree, None)]
    while pending:
        node, statement = pending.pop()
        statement = node if isinstance(node, ast.stmt) else statement
        if statement is not None:
            yield from ((statement, change) for change in _changes_of(node))
        pending += [(child, statement) for child in reversed(_children(node))]


def _children(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
        return []
    skipped = {"annotation", "returns", "decorator_list"}
    fields = [value for name, value in ast.iter_fields(node) if name not in skipped]
    return [child for value in fields for child in (value if isinstance(value, list) else [value]) if _is_node(child)]


def _is_node(value: object) -> bool:
    return isinstance(value, ast.AST)


def _changes_of(node: ast.AST) -> Iterator[Callable[[], None]]:
    def put(name: str, value: object) -> Callable[[], None]:
        return lambda: setattr(node, name, value)

    match node:
        case ast.Compare():
            for place, op in enumerate(node.ops):
                yield put("ops", [*node.ops[:place], OPERATORS[type(op)](), *node.ops[place + 1 :]])
        case ast.UnaryOp(op=ast.Not()):
            yield put("operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.BinOp() | ast.BoolOp() | ast.UnaryOp() | ast.AugAssign() if type(node.op) in OPERATORS:
            yield put("op", OPERATORS[type(node.op)]())
        case ast.Constant(value=bool(value)):
            yield put("value", not value)
        case ast.Constant(value=int(value)):
            yield put("value", value + 1)
            if value > 0:
                yield put("value", value - 1)
        case ast.Constant(value=float(value)):
            yield put("value", 2 * value)
        case ast.Name() if node.id in NAMES:
            yield put("id", NAMES[node.id])
        case ast.Attribute() if node.attr in NAMES:
            yield put("attr", NAMES[node.attr])
        case ast.Expr(value=ast.Call()):
            yield put("value", ast.Constant(None))
        case ast.If() | ast.IfExp() | ast.While() if not isinstance(node.test, ast.Compare | ast.UnaryOp):
            yield put("test", ast.UnaryOp(ast.Not(), node.test))


def _headline(statement: ast.stmt) -> str:
    """The statement, without the lines below it if it has a body."""
    if isinstance(statement, ast.If | ast.While):
        return f"{type(statement).__name__.lower()} {ast.unparse(statement.test)}: …"
    text = ast.unparse(statement)
    return text.split("\n")[0] + " …" if hasattr(statement, "body") else text


def all_mutants(files: Sequence[str]) -> list[Mutant]:
    """Every mutant of the given files and folders below the package."""
    paths = [path for file in files for path in (sorted((PACKAGE / file).rglob("*.py")) or [PACKAGE / file])]
    names = [str(path.relative_to(PACKAGE)) for path in paths]
    return [
        Mutant(name, number)
        for name in names
        if name not in OUT_OF_REACH
        for number in range(sum(1 for _ in changes(ast.parse((PACKAGE / name).read_text(encoding="utf-8")))))
    ]


class _Importer(importlib.abc.MetaPathFinder):
    """Imports one module changed, and leaves the rest to others."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.path = mutant, str(PACKAGE / mutant.file)

    def pytest_sessionstart(self) -> None:
        """In front of pytest's own importer, which takes what the command line names."""
        if any(name.startswith("annattn") for name in sys.modules):
            raise RuntimeError("the package was imported before the mutant")
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname, path, target=None):
        if fullname != self.mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        spec.loader = _Loader(fullname, self.path)
        spec.loader.mutant = self.mutant
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    mutant: Mutant

    def get_code(self, fullname):
        return compile(self.mutant.tree()[0], self.path, "exec", dont_inherit=True)


def stages(mutant: Mutant, slow: bool) -> list[list[str]]:
    """The tests that a mutant meets, one selection after the other."""
    fits = [name for name in CLOSEST if mutant.file == name or mutant.file.startswith(name + "/")]
    near = [CLOSEST[max(fits, key=len)], f"src/annattn/{mutant.file}"]
    quick = [[*near, "-m", "not slow"], [*THEORY, "-m", "not slow"]]
    return [*quick, [*near, "-m", "slow"], ["tests/theorems/test_rows.py", "-k", "small_sizes"]] if slow else quick


def run_tests(mutant: Mutant | None, selection: Sequence[str], report: Path) -> None:
    """Run pytest in this process, with a mutant in place of its module, and end with pytest's exit code."""
    os.environ["CI"] = "1"  # the same examples in every run, and none that are kept for the next
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.chdir(ROOT)
    with report.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    quietly = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-W", "ignore"]
    without_ray = [f"--ignore=tests/mpc/test_{name}.py" for name in ("ray", "ray_cluster", "ray_parts")]
    code = pytest.main([*quietly, *without_ray, *selection], plugins=[_Importer(mutant)] if mutant else [])
    sys.stdout.flush()
    os._exit(code)


def first_failure(mutant: Mutant | None, selection: Sequence[str]) -> str | None:
    """The first test that fails with the mutant, or what else ended the run; None if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        process = WORKERS.Process(target=run_tests, args=(mutant, selection, report))
        process.start()
        process.join()
        if process.exitcode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        lines = report.read_text(encoding="utf-8", errors="replace").splitlines()
    if process.exitcode == pytest.ExitCode.USAGE_ERROR:
        raise RuntimeError("pytest did not start: " + " ".join(lines))
    failed = (line for line in lines if line.startswith(("FAILED", "ERROR")))
    return next(failed, f"the end of its process with {process.exitcode}")


def outcome(mutant: Mutant, slow: bool) -> str:
    """Which tests noticed the mutant, or that none did."""
    found = (first_failure(mutant, selection) for selection in stages(mutant, slow))
    failure = next((failure for failure in found if failure is not None), None)
    return "survived" if failure is None else f"noticed by {failure}"


def digest(*paths: Path) -> str:
    """A name for what these files and folders hold."""
    found = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.read_bytes())
    return found.hexdigest()[:12]


def hunt(mutants: Sequence[Mutant], log: Path, *, jobs: int, slow: bool) -> int:
    """Run every mutant that the log does not have yet, print what survived, and return how many did."""
    log.parent.mkdir(parents=True, exist_ok=True)
    known = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        entry = json.loads(line)
        known[entry["mutant"], entry["source"], entry["tests"]] = entry["outcome"]
        if entry["outcome"] != "survived":
            known[entry["mutant"], entry["source"], "any"] = entry["outcome"]
    tests = digest(ROOT / "tests") + " slow" * slow
    sources = {file: digest(PACKAGE / file) for file in {mutant.file for mutant in mutants}}

    def answer(mutant: Mutant) -> str:
        source = sources[mutant.file]
        found = known.get((str(mutant), source, "any")) or known.get((str(mutant), source, tests))
        if found is None:
            found = outcome(mutant, slow)
            entry = {"mutant": str(mutant), "source": source, "tests": tests, "outcome": found}
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        return found

    if failure := first_failure(None, [*THEORY, "-m", "not slow"]):
        raise RuntimeError(f"the tests must pass before errors are put in: {failure}")
    results = {}
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(answer, mutant): mutant for mutant in mutants}
        for done, future in enumerate(as_completed(waiting), 1):
            results[waiting[future]] = future.result()
            sys.stdout.write(f"{done} of {len(mutants)}: {waiting[future]} {future.result()}\n")
            sys.stdout.flush()
    survivors = [mutant for mutant in mutants if results[mutant] == "survived"]
    for mutant in survivors:
        sys.stdout.write(f"\n{mutant}, {mutant.tree()[1]}\n")
    total = Counter(mutant.file for mutant in mutants)
    alive = Counter(mutant.file for mutant in survivors)
    sys.stdout.write("\n" + "".join(f"{file}: {alive[file]} of {total[file]} survived\n" for file in sorted(total)))
    sys.stdout.write(f"{len(survivors)} of {len(mutants)} mutants survived\n")
    return len(survivors)


def parse(name: str) -> Mutant:
    """A mutant by its name."""
    file, number = name.split("#")
    return Mutant(file, int(number))


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Errors that no tests notice.")
    parser.add_argument(
        "files", nargs="*", help="files or folders below src/annattn, or mutants such as mpc/order.py#3"
    )
    parser.add_argument("--sample", type=int, default=None, help="how many to draw; by default all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--log", type=Path, default=ROOT / "results" / "mutants.jsonl", help="what is known already")
    parser.add_argument("--slow", action="store_true", help="survivors of the quick tests also meet slow ones")
    given = parser.parse_args(arguments)
    named = [parse(name) for name in given.files if "#" in name]
    folders = [name for name in given.files if "#" not in name] or (() if named else TARGETS)
    mutants = all_mutants(folders)
    if given.sample is not None and given.sample < len(mutants):
        mutants = random.Random(given.seed).sample(mutants, given.sample)
    return 1 if hunt([*named, *mutants], given.log, jobs=given.jobs, slow=given.slow) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
