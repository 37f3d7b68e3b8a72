"""The sweep over lengths: right answers only, and ratios of the times that were measured."""

import pytest
import torch

from annattn.errors import AnnattnError, InputError
from annattn.lsh import Hyperplane
from annattn.measure import answers, exponent, lengths, measure_speed, speed, timing


@pytest.mark.slow
def test_ratios_are_those_of_the_times():
    for row in measure_speed([256, 512], tables=2, hashes=4, dim=16)["rows"]:
        t = row["seconds"]
        assert row["ratio"]["softmax / ANNA"] == t["softmax"] / t["anna"]
        assert row["ratio"]["causal softmax / causal ANNA"] == t["causal_softmax"] / t["causal_anna"]
        assert row["ratio"]["ANNA / floor"] == t["anna"] / t["floor"]
        assert all(0 < value < 60 for value in t.values())
        assert max(row["largest_error"].values()) < 2e-6


@pytest.fixture(params=["anna_attention", "scaled_dot_product_attention"])
def contender(request):
    return request.param, getattr(speed, request.param)


def test_an_answer_that_is_wrong_in_one_query_is_not_timed(contender, monkeypatch):
    name, true = contender

    def wrong(*args, **kwargs):
        out = true(*args, **kwargs).clone()
        out[:, :, 0, 0] += 1e-3
        return out

    monkeypatch.setattr(speed, name, wrong)
    with pytest.raises(AnnattnError, match="wrong by"):
        measure_speed([64], tables=2, hashes=2, dim=8)


def test_causal_attention_that_sees_the_future_is_not_timed(contender, monkeypatch):
    name, true = contender
    monkeypatch.setattr(speed, name, lambda *args, is_causal, **kwargs: true(*args, **kwargs))
    with pytest.raises(AnnattnError, match="causal: an answer is wrong"):
        measure_speed([64], tables=2, hashes=2, dim=8)


def test_an_answer_that_is_no_number_is_wrong():
    query, key, value = answers.random_inputs(8, heads=1, dim=4)
    weights = answers.softmax_weights(query, key)
    with pytest.raises(AnnattnError, match="wrong by nan"):
        answers.check_answer("softmax", torch.full_like(value, torch.nan), weights, value)


def test_collisions_are_counted_pair_by_pair():
    query, key, _ = answers.random_inputs(20, heads=2, dim=4)
    hasher = Hyperplane(4).sample(tables=3, hashes=2)
    asked, held = hasher(query).tolist(), hasher(key).tolist()
    for is_causal in (False, True):
        counts = answers.collision_counts(query, key, hasher, is_causal=is_causal)
        for head in range(2):
            for place, i in enumerate(answers.sampled_queries(20).tolist()):
                for j in range(20):
                    met = sum(a == b for a, b in zip(asked[0][head][i], held[0][head][j], strict=True))
                    assert counts[0, head, place, j] == (0 if is_causal and j > i else met)


def test_lengths_double_up_to_the_longest():
    assert lengths(65_536) == [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536]
    with pytest.raises(InputError, match="longest: got 1023, expected an integer of at least 1024"):
        lengths(1023)


def test_the_exponent_of_a_power_law_is_its_power():
    sizes = [10, 100, 1000]
    assert exponent(sizes, [n**1.5 for n in sizes]) == pytest.approx(1.5)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only calls move on; gives a function that makes a call of a given number of seconds."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def call_of(*seconds: float):
        left = list(seconds)

        def call() -> None:
            now[0] += left.pop(0) if len(left) > 1 else left[0]

        return call

    return call_of


def test_the_first_run_does_not_count_unless_it_is_very_slow(clock):
    assert timing.median_seconds(clock(4.0, 0.25)) == 0.25
    assert timing.median_seconds(clock(6.0, 0.25)) == 6.0


def test_a_median_is_of_enough_runs(clock):
    assert timing.median_seconds(clock(0.125, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)) == 0.5
    assert timing.median_seconds(clock(1.0, 1.0, 2.0, 3.0), enough=0) == 2.0


def test_runs_take_turns_until_each_took_enough(clock):
    runs = timing.runs_in_turns({"fast": clock(0.25), "slow": clock(2.0)}, enough=1.0)
    assert runs == {"fast": [0.25] * 4, "slow": [2.0] * 3}
