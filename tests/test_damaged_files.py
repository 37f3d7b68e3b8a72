"""Files of every format with bytes changed, cut off or added: read as they stand, or refused in one sentence."""

import contextlib
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from annattn.errors import AnnattnError
from annattn.nn import AnnaConfig, SoftmaxConfig, Transformer, TransformerConfig, load_model, save_model
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


FORMATS = {
    "npy": (_npy, "a.npy", _read_array),
    "safetensors": (_safetensors, "a.safetensors", _read_array),
    "weights": (_model, "a.safetensors", load_model),
    "description": (_model, "a.json", load_model),
}


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
    folder = tmp_path_factory.mktemp("damaged")
    write(folder / name)
    data = (folder / name).read_bytes()
    for how, share, added in damages:
        at = int(share * len(data))
        after = {"cut": b"", "put": data[at + len(added) :], "insert": data[at:]}[how]
        data = data[:at] + added + after
    (folder / name).write_bytes(data)
    with contextlib.suppress(AnnattnError):
        read(folder / name)
    assert not list(folder.glob("*.partial"))


@pytest.mark.slow
@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_any_json_in_place_of_an_option_is_refused_or_right(value, tmp_path_factory):
    folder = tmp_path_factory.mktemp("option")
    _model(folder / "a")
    data = json.loads((folder / "a.json").read_text())
    for where in (data["model"]["attention"][0], data["model"], data):
        for option in list(where):
            before, where[option] = where[option], value
            (folder / "a.json").write_text(json.dumps(data))
            where[option] = before
            with contextlib.suppress(AnnattnError):
                load_model(folder / "a")
