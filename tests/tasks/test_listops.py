import numpy as np
import pytest

from annattn.errors import InputError
from annattn.tasks import ListOps

SHORT = ListOps(n=24, longer_than=0)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7", 7),
        ("[MIN 4 2 9 ]", 2),
        ("[MAX 4 2 9 ]", 9),
        ("[MED 4 2 9 ]", 4),
        ("[MED 3 8 ]", 5),  # 5.5 rounded down, as the benchmark's int(np.median(...))
        ("[SM 4 2 9 ]", 5),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),  # the example of the benchmark's paper, shortened
        ("( ( ( [SM 1 ) [MED 9 9 1 ] ) ] )", 0),
    ],
)
def test_values_of_expressions(expression, value):
    x = SHORT.encode(expression)
    answer = SHORT.special["first_digit"] + value
    for label in (SHORT.labels, SHORT.solve):
        assert label(x).tolist() == [answer] + [0] * 23


def test_the_defaults_are_the_benchmarks_lengths():
    task = ListOps()
    lengths = (task.sample(64, seed=0).inputs != 0).sum(axis=1)
    assert lengths.min() > 500
    assert lengths.max() < 2000
    assert task.n == 2000


@pytest.mark.slow
def test_expressions_are_drawn_as_the_benchmark_draws_them():
    """Against a recursive generator that shares no code: shares of operators, digits and arguments."""
    rng = np.random.default_rng(0)

    def grow(depth: int) -> list[str]:
        if depth == 10 or rng.random() > 0.25:
            return [str(rng.integers(10))]
        children = [grow(depth + 1) for _ in range(rng.integers(2, 11))]
        return [
            "[" + ["MIN", "MAX", "MED", "SM"][rng.integers(4)],
            *(word for child in children for word in child),
            "]",
        ]

    task = ListOps(n=200, longer_than=50)
    slow: list[list[str]] = []
    while len(slow) < 400:
        words = grow(1)
        if 50 < len(words) < 200:
            slow.append(words)
    fast = [task.decode(row).split() for row in task.sample(400, seed=0).inputs]

    def shares(some):
        deepest = [
            max(np.cumsum([word[0] == "[" for word in one]) - np.cumsum([word == "]" for word in one])) for one in some
        ]
        words = [word for one in some for word in one]
        means = [np.mean([len(one) for one in some]), np.mean(deepest)]
        return np.array([*means, *(100 * words.count(word) / len(words) for word in ("[MIN", "[SM", "0", "9", "]"))])

    np.testing.assert_allclose(shares(fast), shares(slow), rtol=0.1)


@pytest.mark.parametrize(
    "wrong", [[11, 1, 0, 0, 0], [11, 15, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 0, 0, 0], [15, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
)
def test_what_is_no_expression_is_refused(wrong):
    with pytest.raises(InputError, match="expected one expression, then blanks"):
        ListOps(n=5, longer_than=0).labels([wrong])


def test_lengths_that_cannot_be_drawn_are_named():
    with pytest.raises(InputError, match="expected some of 30 to 39 tokens"):
        ListOps(n=40, longer_than=29, depth=2).sample(2, seed=0)
    with pytest.raises(InputError, match="longer_than: got 9"):
        ListOps(n=10, longer_than=9)
    with pytest.raises(InputError, match=r"expression: got 'FIRST'"):
        SHORT.encode("FIRST 2 3")


def test_a_node_is_an_operator_with_probability_one_quarter():
    drawn = ListOps(n=400, longer_than=0, depth=3)._draw(4000, np.random.default_rng(0))
    lengths = (drawn != 0).sum(axis=1)
    assert (lengths == 1).mean() == pytest.approx(0.75, abs=0.03)
    below = drawn[lengths > 1][:, 1]  # the first argument of every root
    assert (below < 11).mean() == pytest.approx(0.75, abs=0.06)
    counts = np.bincount(drawn[lengths > 1][:, 0] - 11, minlength=4) / (lengths > 1).sum()
    assert counts == pytest.approx([0.25] * 4, abs=0.06)
