"""Files of every format with bytes changed, cut off or added: read as they stand, or refused in one sentence."""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from annattn.compiler import to_module
from annattn.data import CORPORA, Corpus, Text, fetch, load
from annattn.errors import AnnattnError
from annattn.experiments.comparison import CONTENDERS, PROFILES, Profile, Run, read_runs, summary
from annattn.experiments.recipe import write_recipe
from annattn.experiments.text import TextConfig, TextModel, TextRecipe, load_text_model, train_text
from annattn.experiments.text.training import save_text_model
from annattn.mpc.programs import sum_program
from annattn.nn import (
    AnnaConfig,
    ExactTransformer,
    SoftmaxConfig,
    Transformer,
    TransformerConfig,
    load_model,
    save_model,
)
from annattn.outofcore import ArrayFile


def _npy(path):
    np.save(path, np.arange(24, dtype=np.float32).reshape(4, 6))


def _safetensors(path):
    path.write_bytes(save({"query": torch.arange(24.0).reshape(4, 6)}))


def _read_array(path):
    found = ArrayFile.open("query", path)
    if len(found.shape) == 2 and found.shape[0]:
        found.read((slice(0, 1),))


def _model(path):
    config = TransformerConfig(
        input_vocab=4, target_vocab=2, length=8, dim=8, attention=(AnnaConfig(tables=2, hashes=2), SoftmaxConfig())
    )
    save_model(Transformer(config).draw(3), path)


TINY = TextConfig(dim=8, layers=1, heads=1, window=4, far_layer=0, grams=2, key_dim=4, value_dim=4, tables=2, hashes=2)
RECIPE = TextRecipe("tiny", TINY, steps=2, batch=1, length=8, warmup=1, tables=2, hashes=2)
TEXT = Text("tiny", np.arange(200, dtype=np.uint8), "sum", {"train": (0, 180), "validation": (180, 200)})


def _text_model(path):
    save_text_model(TextModel(TINY), path, notes={"seed": 0})


def _text_run(path):
    train_text(RECIPE, TEXT, folder=path.parent, stop_at=1)


def _go_on(path):
    train_text(RECIPE, TEXT, folder=path.parent, stop_at=1)  # where it is


def _program(path):
    to_module(sum_program(n=3, arity=2)).save(path)


def _run_program(path):
    ExactTransformer.load(path).run([1, 2, 3])


COMPARED = Profile({"match2": PROFILES["small"].tasks["match2"]}, rates=(3e-3,), samples=2, draws=1)
RESULT = "runs/match2/softmax-0.003-0.json"


def _result(path):
    recipe = write_recipe(COMPARED.tasks["match2"].recipe(CONTENDERS["softmax"], 3e-3))
    measured = {"validation": 0.5, "errors": {"match2": {"mean": 0.5, "spread": 0.0}}}
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"recipe": recipe, "seed": 0, "parameters": 10, "seconds": 1.0, "processor_seconds": 1.0}
    path.write_text(json.dumps(told | measured))


def _read_result(path):
    found = read_runs(COMPARED, path.parents[2])
    assert set(found) <= {Run("match2", "softmax", 3e-3, 0)}
    summary(COMPARED, found)


def _corpus(path):
    (path.parent / "text").write_bytes(bytes(range(200)))
    fetch("tiny", folder=path.parent, file=path.parent / "text")


def _read_corpus(path):
    load("tiny", path.parent).sample("train", 1, 8, seed=0)


@pytest.fixture(autouse=True, scope="module")
def tiny():
    CORPORA["tiny"] = Corpus("tiny", (), sha256=hashlib.sha256(bytes(range(200))).hexdigest())
    yield
    del CORPORA["tiny"]


FORMATS = {
    "npy": (_npy, "a.npy", _read_array),
    "safetensors": (_safetensors, "a.safetensors", _read_array),
    "weights": (_model, "a.safetensors", load_model),
    "description": (_model, "a.json", load_model),
    "weights of a text model": (_text_model, "a.safetensors", lambda path: load_text_model(path.with_suffix(""))),
    "description of a text model": (_text_model, "a.json", lambda path: load_text_model(path.with_suffix(""))),
    "state of a run on text": (_text_run, "state.safetensors", _go_on),
    "description of a run on text": (_text_run, "run.json", _go_on),
    "log of a run on text": (_text_run, "log.csv", _go_on),
    "program as weights": (_program, "a.safetensors", _run_program),
    "result of a comparison": (_result, RESULT, _read_result),
    "bytes of a corpus": (_corpus, "tiny.bytes", _read_corpus),
    "description of a corpus": (_corpus, "tiny.json", _read_corpus),
}


_WRITTEN: dict[str, Path] = {}


def written(write, name, tmp_path_factory) -> Path:
    """A new folder with what a writer writes, which it is asked for once."""
    key = f"{write.__name__} {name}"
    if key not in _WRITTEN:
        _WRITTEN[key] = tmp_path_factory.mktemp("whole")
        write(_WRITTEN[key] / name)
    return Path(shutil.copytree(_WRITTEN[key], tmp_path_factory.mktemp("damaged"), dirs_exist_ok=True))


@st.composite
def damage(draw):
    """What to do to the bytes of a file: places are shares of its length."""
    places = st.floats(0, 1, exclude_max=True)
    return draw(
        st.one_of(
            st.tuples(st.just("cut"), places, st.just(b"")),
            st.tuples(st.just("put"), places, st.binary(min_size=1, max_size=12)),
            st.tuples(st.just("insert"), places, st.binary(min_size=1, max_size=12)),
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
@given(damages=st.lists(damage(), min_size=1, max_size=3))
def test_a_damaged_file_is_read_or_refused(kind, damages, tmp_path_factory):
    write, name, read = FORMATS[kind]
    folder = written(write, name, tmp_path_factory)
    data = (folder / name).read_bytes()
    for how, share, added in damages:
        at = int(share * len(data))
        after = {"cut": b"", "put": data[at + len(added) :], "insert": data[at:]}[how]
        data = data[:at] + added + after
    (folder / name).write_bytes(data)
    with contextlib.suppress(AnnattnError):
        read(folder / name)
    assert not list(folder.glob("*.partial"))


OPTIONS = {
    "model": (_model, "a.json", lambda data: (data["model"]["attention"][0], data["model"], data)),
    "text model": (_text_model, "a.json", lambda data: (data["model"], data)),
    "result": (_result, RESULT, lambda data: (data["errors"]["match2"], data["errors"], data)),
    "corpus": (_corpus, "tiny.json", lambda data: (data["splits"], data)),
    "run": (_text_run, "run.json", lambda data: (data,)),
}
READERS = {
    "model": load_model,
    "text model": lambda path: load_text_model(path.with_suffix("")),
    "result": _read_result,
    "corpus": _read_corpus,
    "run": _go_on,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIONS)
@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_json_in_place_of_an_option_is_refused_or_right(kind, value, tmp_path_factory):
    write, name, places = OPTIONS[kind]
    folder = written(write, name, tmp_path_factory)
    data = json.loads((folder / name).read_text())
    for where in places(data):
        for option in list(where):
            before, where[option] = where[option], value
            (folder / name).write_text(json.dumps(data))
            where[option] = before
            with contextlib.suppress(AnnattnError):
                READERS[kind](folder / name)
