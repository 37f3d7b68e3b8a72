"""Bad input gets an error that says what was given, what was expected, and what to do."""

import pickle

import pytest
import torch

import annattn as aa
from annattn.attention import MECHANISMS, Mechanism
from annattn.errors import AnnattnError, InputError
from tests.strategies import mechanisms

DIM = 4
OF_THREE = mechanisms(lambda config: not config.shared_query_key)
X = torch.zeros(2, 4, 5, DIM)


def takes_hasher(mechanism: Mechanism) -> bool:
    return "hasher" in mechanism.options(DIM) and not mechanism.config.shared_query_key


@OF_THREE
@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        (X[0], X, X, r"query: got 3 axes, shape \(4, 5, 4\), expected 4 axes \(batch, heads, n, dim\)"),
        (X, X[0, 0], X, "key: got 2 axes"),
        (X, X, X[None], "value: got 5 axes"),
        (X[:1], X, X, "key batch: got 2, expected the query's 1"),
        (X[:, :3], X, X, "query heads: got 3, expected a multiple of the 4 key heads"),
        (X, X[:, :3], X[:, :3], "query heads: got 4, expected a multiple of the 3 key heads"),
        (X, X[..., :2], X, "key dim: got 2, expected the query's 4"),
        (X, X, X[:, :, :3], r"value: got \(batch, heads, n\) = \(2, 4, 3\), expected the key's \(2, 4, 5\)"),
        (X, X, X[:, :2], "value: got"),
        (X, X, X.long(), r"value: got torch.int64, expected a floating-point dtype; call value.float\(\)"),
        (X, X.to("meta"), X, "key: got device meta, expected the query's device cpu"),
    ],
)
def test_shapes_that_do_not_fit_are_named(mechanism: Mechanism, query, key, value, message):
    with pytest.raises(InputError, match=message):
        mechanism.attend(query, key, value, **mechanism.options(DIM))


@mechanisms(lambda config: config.takes_mask and not config.shared_query_key)
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 5), r"key_mask: got torch.float32, expected torch.bool.*call key_mask.bool\(\)"),
        (torch.ones(2, 4, dtype=torch.bool), r"key_mask: got shape \(2, 4\), expected \(batch, n_keys\) = \(2, 5\)"),
        (torch.ones(5, dtype=torch.bool), r"key_mask: got shape \(5,\)"),
    ],
)
def test_a_mask_must_be_one_bool_per_key(mechanism: Mechanism, mask, message):
    with pytest.raises(InputError, match=message):
        mechanism.attend(X, X, X, key_mask=mask, **mechanism.options(DIM))


@pytest.mark.parametrize("name", [name for name in MECHANISMS if takes_hasher(MECHANISMS[name])])
def test_a_hasher_must_fit(name):
    options = MECHANISMS[name].options(DIM)
    attend = MECHANISMS[name].attend
    with pytest.raises(InputError, match="hasher: got one made for dim 3, expected one for the query's dim 4"):
        attend(X, X, X, **options | {"hasher": aa.lsh.Hyperplane(3).sample(tables=1, hashes=1)})
    with pytest.raises(InputError, match=r"hasher: got Hyperplane, expected a Hasher; draw one: .*sample"):
        attend(X, X, X, **options | {"hasher": aa.lsh.Hyperplane(4)})


def test_unknown_options_are_refused():
    hasher = aa.lsh.Hyperplane(DIM).sample(tables=1, hashes=1)
    with pytest.raises(InputError, match="empty: got 'mean', expected"):
        aa.anna_attention(X, X, X, hasher, empty="mean")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="algorithm: got 'fast', expected"):
        aa.anna_attention(X, X, X, hasher, algorithm="fast")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="beta: got nan"):
        aa.softmax_attention(X, X, X, beta=float("nan"))
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match="dropout: got"):
            aa.softmax_attention(X, X, X, beta=1.0, dropout=share)
    with pytest.raises(InputError, match=r"key: got torch\.float64, expected the query's torch\.float32"):
        aa.exact_match_attention(X, X.double(), X)


def test_errors_share_a_base_and_survive_pickling():
    error = InputError("tables", given=0, expected="at least 1", hint="pass 8")
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, AnnattnError)
    assert isinstance(copy, ValueError)
    assert str(copy) == str(error) == "tables: got 0, expected at least 1; pass 8"
