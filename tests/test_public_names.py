import importlib
import pkgutil
from importlib.util import find_spec

import annattn as aa

PUBLIC = {
    "AnnaReport", "BucketCache", "Plan", "WindowCache", "anna_attention", "attention", "check_anna",
    "collision_softmax_attention", "compiler", "distributed", "errors",
    "exact_match_attention", "expected_collision_attention", "expected_latest_attention", "experiments", "kernels",
    "latest_match_attention", "low_rank_attention", "lsh", "mpc", "nn", "outofcore", "plan", "reformer_attention",
    "sampled_collision_attention", "sampled_latest_attention", "softmax_attention", "tasks", "theorems",
    "window_attention",
}  # fmt: skip


def test_the_public_names_are_these():
    assert set(aa.__all__) == PUBLIC
    assert all(hasattr(aa, name) for name in PUBLIC)


def test_every_module_lists_what_it_offers():
    for found in pkgutil.walk_packages(aa.__path__, "annattn."):
        if found.name.startswith("annattn.kernels.triton.") and not find_spec("triton"):
            continue
        module = importlib.import_module(found.name)
        assert isinstance(module.__all__, list), found.name
        assert all(hasattr(module, name) for name in module.__all__), found.name


def test_every_public_function_shows_an_example():
    for name in aa.__all__:
        thing = getattr(aa, name)
        if callable(thing) and name not in ("AnnaReport", "Plan"):
            assert ">>> " in (thing.__doc__ or ""), name
