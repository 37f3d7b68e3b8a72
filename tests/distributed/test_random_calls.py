"""Random calls on two ranks: slices, families, options and gradients as they come, beside one process."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.distributed.cases import WHOLE, Case, on_one, on_rank


@st.composite
def cases(draw) -> Case:
    kind = draw(st.sampled_from(sorted(WHOLE)))
    cut = (draw(st.integers(0, 12)), draw(st.integers(0, 12)))
    options = {}
    if kind != "latest":
        options["is_causal"] = draw(st.booleans())
        options["way"] = draw(st.sampled_from(["auto", "states", "members"]))
    if kind == "window":
        options["window"] = draw(st.integers(0, 15))
        options["shift"] = draw(st.integers(0, 3)) if options["is_causal"] else 0
        options["combine"] = draw(st.sampled_from(["gate", "joined"]))
    if kind in ("anna", "latest", "window"):
        options["gradient"] = draw(st.sampled_from(["linear", "exact", "none"]))
    key_heads = draw(st.integers(1, 2))
    return Case(
        kind=kind,
        cut=cut,
        batch=draw(st.integers(1 if kind == "exact" else 0, 2)),
        heads=key_heads * draw(st.integers(1, 2)),
        key_heads=key_heads,
        dim=draw(st.integers(2, 6)),
        width=draw(st.integers(1, 6)),
        tables=draw(st.integers(1, 4)),
        hashes=draw(st.integers(1, 4)),
        per_head=draw(st.booleans()),
        masked=draw(st.booleans()),
        documents=draw(st.sampled_from([None, "numbers", "boundaries"])) if kind in ("anna", "window") else None,
        gradients=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        options=options,
    )


@pytest.mark.slow
@given(case=cases())
@settings(max_examples=25)
def test_two_ranks_give_what_one_process_gives(pool, case):
    parts = [found for found, _ in pool.run(2, on_rank, case)]
    for at, expected in enumerate(on_one(case)):
        found = torch.cat([part[at] for part in parts], dim=2)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
