"""Attention over 1, 2, 3 and 4 real processes equals that of one: outputs, gradients, bytes."""

import pytest
import torch

from tests.distributed.cases import Case, on_one, on_rank
from tests.distributed.pool import Pool

CUTS = [(26,), (20, 20), (7, 0, 13), (5, 9, 1, 4)]
THREE = Case(cut=(9, 14, 3))
BOTH_WAYS = ("states", "members")


def compare(pool: Pool, case: Case, *, rtol: float = 1e-9, atol: float = 1e-11) -> list[str]:
    """Hold the ranks to one process; returns the ways that were taken."""
    expected = on_one(case)
    found = pool.run(len(case.cut), on_rank, case)
    for at, whole in enumerate(expected):
        got = torch.cat([tensors[at] for tensors, _ in found], 2)
        torch.testing.assert_close(got, whole, rtol=rtol, atol=atol, equal_nan=True)
    for _, traffic in found:
        assert traffic.predicted == traffic.sent
        assert all(one.predicted == one.sent for one in traffic.exchanges)
    return [one.way for one in found[0][1].exchanges]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("way", BOTH_WAYS)
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_any_cut_gives_the_numbers_of_one_process(pool, cut, way, is_causal):
    ways = compare(pool, Case(cut=cut, options={"way": way, "is_causal": is_causal}))
    assert ways == ([] if len(cut) == 1 else [way, way])


@pytest.mark.parametrize("way", BOTH_WAYS)
@pytest.mark.parametrize(
    "case",
    [
        Case(cut=(0, 0, 0)),
        Case(cut=(0, 5, 0), documents="numbers"),
        Case(cut=(3, 4), batch=0),
        Case(cut=(3, 4), heads=0, key_heads=0),
        Case(cut=(3, 4), width=0),
        Case(cut=(3, 4), width=0, kind="window", options={"window": 2}),
        Case(cut=(0, 0), kind="exact"),
    ],
    ids=str,
)
def test_nothing_to_attend_to_is_no_error(pool, case, way):
    compare(pool, case.but(options={**case.options, "way": way}))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("way", BOTH_WAYS)
@pytest.mark.parametrize(
    "case",
    [
        THREE.but(masked=True, per_head=True),
        THREE.but(documents="boundaries"),
        THREE.but(documents="slices"),
        THREE.but(documents="numbers", masked=True),
        THREE.but(hashes=70),
        THREE.but(hashes=70, documents="numbers"),
        THREE.but(family="CrossPolytope", hashes=2),
        THREE.but(kind="exact"),
        THREE.but(kind="exact", masked=True),
        THREE.but(heads=6, key_heads=1),
    ],
    ids=str,
)
def test_masks_documents_heads_and_wide_codes(pool, case, way, is_causal):
    options = {"way": way, "is_causal": is_causal}
    compare(pool, case.but(options=options))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("documents", [None, "boundaries", "numbers"])
def test_a_key_without_a_bucket_makes_the_same_answers_unknown(pool, documents, is_causal):
    case = THREE.but(bad=(11, 12), documents=documents, gradients=False, options={"is_causal": is_causal})
    assert on_one(case)[0].isnan().any()
    compare(pool, case)


@pytest.mark.parametrize("gradient", ["exact", "none"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_other_gradients(pool, gradient, is_causal):
    compare(pool, THREE.but(options={"gradient": gradient, "is_causal": is_causal}))


def test_euclidean_hashes_are_named(pool):
    compare(pool, THREE.but(family="Euclidean", options={"gradient": "none"}))


@pytest.mark.parametrize("way", BOTH_WAYS)
def test_queries_and_keys_may_be_cut_elsewhere(pool, way):
    compare(pool, THREE.but(query_cut=(4, 0, 8), options={"way": way}))


@pytest.mark.parametrize("cut", [(9, 14, 3), (26,), (0, 10, 0, 4)], ids=str)
@pytest.mark.parametrize("gradient", ["linear", "exact"])
def test_latest_match(pool, cut, gradient):
    compare(pool, Case(kind="latest", cut=cut, masked=gradient == "exact", options={"gradient": gradient}))


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"window": 4, "way": "states"},
        {"window": 7, "combine": "joined", "gate": 0.5, "way": "members"},
        {"window": 7, "shift": 1, "combine": "joined", "way": "members", "is_causal": True},
        {"window": 0, "is_causal": True},
        {"window": 0},
        {"window": 1},
        {"window": 60, "is_causal": True},
        {"window": 60},
    ],
    ids=str,
)
def test_a_window_reaches_into_the_slices_around(pool, cut, options):
    compare(pool, Case(kind="window", cut=cut, options=options))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("documents", ["boundaries", "numbers", "slices"])
def test_a_window_with_documents_and_a_mask(pool, documents, is_causal):
    options = {"window": 5, "shift": int(is_causal), "is_causal": is_causal}
    compare(pool, THREE.but(kind="window", masked=True, documents=documents, options=options))


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_key_without_a_bucket_is_unknown_on_both_sides_of_a_window(pool, is_causal):
    case = THREE.but(kind="window", bad=(11,), gradients=False, options={"window": 3, "is_causal": is_causal})
    assert on_one(case)[0][0, 0, 0].isnan().all() != is_causal
    compare(pool, case)


@pytest.mark.parametrize("way", BOTH_WAYS)
@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"),
    [(torch.float32, 1e-4, 1e-5), (torch.bfloat16, 1.6e-2, 1e-2), (torch.float16, 2e-3, 2e-3)],
    ids=str,
)
def test_every_dtype(pool, dtype, rtol, atol, way):
    exact = Case(kind="exact", cut=(40, 33), dtype=dtype, options={"way": way})
    compare(pool, exact, rtol=rtol, atol=atol)
    case = Case(cut=(40, 33), dtype=dtype, options={"way": way, "is_causal": True})
    compare(pool, case, rtol=rtol, atol=atol)


@pytest.mark.parametrize("way", BOTH_WAYS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_same_number_of_ranks_gives_the_same_bits(pool, size, way):
    case = Case(cut=(50,) * size, dtype=torch.float32, options={"way": way, "is_causal": True})
    first, second = (pool.run(size, on_rank, case) for _ in range(2))
    for (once, _), (again, _) in zip(first, second, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_states_send_as_much_for_any_length_and_members_are_taken_where_they_send_less(pool):
    def sent(n: int, **changes) -> tuple[int, str]:
        case = Case(cut=(n, n), gradients=False, dtype=torch.float32, hashes=4, **changes)
        traffic = pool.run(2, on_rank, case)[0][1]
        return traffic.sent, traffic.exchanges[0].way

    assert sent(300) == sent(1200)
    assert sent(300)[1] == "states"
    few, way = sent(2)
    assert way == "members"
    forced, _ = sent(2, options={"way": "states"})
    assert few < forced
