"""Whatever is done to a cache, in whatever order, it holds what a plain list of keys and values holds."""

import io

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import annattn as aa
from annattn.attention import reference
from annattn.kernels import BACKENDS, use_backend
from annattn.lsh import CrossPolytope, Euclidean, Hyperplane

BATCH, HEADS, SHARE, DIM, WIDTH, HISTORY = 2, 2, 2, 3, 9, 4
# Few buckets, so that they become rows; more than dense tables have; and hash values too wide for a code.
HASHERS = {
    "narrow": Hyperplane(DIM).sample(tables=3, hashes=2),
    "cross-polytope": CrossPolytope(DIM).sample(tables=2, hashes=2),
    "packed": Hyperplane(DIM).sample(tables=3, hashes=30),
    "wide": Euclidean(DIM).sample(tables=2, hashes=2),
}
# Rows that every dtype can tell, so that they hash alike in all of them.
POOL = torch.randn(6, DIM, generator=torch.Generator().manual_seed(0)).bfloat16().float()
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])
NAN = len(POOL)  # a key without a bucket
ROWS = torch.cat([POOL, torch.full((1, DIM), torch.nan)])
TUPLES = {hasher: reference.hash_tuples(ROWS, hasher) for hasher in HASHERS.values()}
TOKEN = st.tuples(
    st.lists(st.sampled_from([*range(len(POOL))] * 4 + [NAN]), min_size=HEADS, max_size=HEADS),
    st.lists(st.integers(-8, 8), min_size=HEADS, max_size=HEADS),  # values: multiples of one vector per head
)
VECTORS = torch.arange(HEADS * WIDTH).reshape(HEADS, WIDTH) - 5
TOKENS = st.lists(st.tuples(TOKEN, st.tuples(st.booleans(), st.booleans())), max_size=5)
QUERIES = st.lists(st.integers(0, len(POOL) - 1), min_size=HEADS * SHARE, max_size=HEADS * SHARE)


def meaning(hasher, mechanism, tokens, head, query) -> torch.Tensor:
    """The output of one query over a list of tokens (names of keys, values), by the tuples of hash values."""
    names = TUPLES[hasher]
    if any(keys[head] == NAN for keys, _ in tokens):
        return torch.full((WIDTH,), torch.nan, dtype=torch.float64)
    weights = torch.zeros(len(tokens), dtype=torch.float64)
    for table in range(hasher.tables):
        met = [j for j, (keys, _) in enumerate(tokens) if names[keys[head]][table] == names[query][table]]
        for j in met if mechanism == "anna" else met[-1:]:
            weights[j] += 1
    values = torch.tensor([value[head] for _, value in tokens], dtype=torch.float64)[:, None] * VECTORS[head]
    return (weights[:, None] * values).sum(0) / weights.sum().clamp(min=1)


class Sequences(RuleBasedStateMachine):
    hasher = HASHERS["narrow"]
    mechanism = "anna"
    backend = "torch"
    snapshots = Bundle("snapshots")

    def __init__(self):
        super().__init__()
        self.cache = self.fresh()
        self.tokens = [[] for _ in range(BATCH)]
        self.undoable: list[int] = [0] * BATCH

    def fresh(self):
        return aa.BucketCache(
            self.hasher, batch=BATCH, heads=HEADS, value_dim=WIDTH, history=HISTORY,
            mechanism=self.mechanism,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip

    def tensors(self, new):
        keys = torch.tensor([keys for (keys, _), _ in new], dtype=torch.int64).reshape(-1, HEADS)
        values = torch.tensor([value for (_, value), _ in new], dtype=torch.float32).reshape(-1, HEADS, 1) * VECTORS
        mask = torch.tensor([taking_part for _, taking_part in new], dtype=torch.bool).reshape(-1, BATCH)
        key, value = (x.transpose(0, 1).expand(BATCH, -1, -1, -1) for x in (ROWS[keys], values))
        return key, value, mask.T

    def put(self, new):
        """Enter new tokens into the list; returns per token what each row holds up to it."""
        so_far = []
        for token, taking_part in new:
            for row in range(BATCH):
                if taking_part[row]:
                    self.tokens[row] = [*self.tokens[row], token]
                    self.undoable[row] = min(HISTORY, self.undoable[row] + 1)
            so_far.append([list(tokens) for tokens in self.tokens])
        return so_far

    def expected(self, so_far, query):
        return torch.stack(
            [
                torch.stack([meaning(self.hasher, self.mechanism, so_far[b], h // SHARE, query[h]) for h in range(4)])
                for b in range(BATCH)
            ]
        )

    def check(self, out, expected):
        eps = torch.finfo(out.dtype).eps
        torch.testing.assert_close(out.double(), expected, rtol=4 * eps, atol=4 * eps, equal_nan=True)

    @rule(new=TOKENS, dtype=DTYPES)
    def append(self, new, dtype):
        key, value, mask = self.tensors(new)
        self.cache.append(key.to(dtype), value.to(dtype), key_mask=mask)
        self.put(new)

    @rule(new=TOKENS, query=QUERIES, dtype=DTYPES)
    def step(self, new, query, dtype):
        key, value, mask = self.tensors(new)
        queries = POOL[query][None, :, None].expand(BATCH, -1, len(new), -1)
        out = self.cache.step(queries.to(dtype), key.to(dtype), value.to(dtype), key_mask=None if mask.all() else mask)
        assert out.dtype == dtype
        for at, so_far in enumerate(self.put(new)):
            self.check(out[:, :, at], self.expected(so_far, query))

    @rule(query=QUERIES)
    def attend(self, query):
        out = self.cache.attend(POOL[query][None, :, None].expand(BATCH, -1, 1, -1))
        self.check(out[:, :, 0], self.expected(self.tokens, query))

    @rule(share=st.tuples(st.floats(0, 1), st.floats(0, 1)))
    def crop(self, share):
        less = [round(share[row] * self.undoable[row]) for row in range(BATCH)]
        self.cache.crop(less)
        self.tokens = [tokens[: len(tokens) - n] for tokens, n in zip(self.tokens, less, strict=True)]
        self.undoable = [old - n for old, n in zip(self.undoable, less, strict=True)]

    @rule(row=st.integers(0, BATCH - 1))
    def crop_too_much(self, row):
        less = [0] * BATCH
        less[row] = self.undoable[row] + 1
        with pytest.raises(aa.errors.InputError, match=f"tokens to undo of batch row {row}"):
            self.cache.crop(less)

    @rule(target=snapshots)
    def snapshot(self):
        return self.cache.snapshot(), list(self.tokens), list(self.undoable)

    @rule(taken=snapshots)
    def restore(self, taken):
        snapshot, tokens, undoable = taken
        self.cache.restore(snapshot)
        self.tokens, self.undoable = list(tokens), list(undoable)

    @rule(rows=st.lists(st.integers(0, BATCH - 1), min_size=BATCH, max_size=BATCH))
    def reorder(self, rows):
        self.cache.reorder(rows)
        self.tokens = [self.tokens[row] for row in rows]
        self.undoable = [self.undoable[row] for row in rows]

    @rule(rows=st.sets(st.integers(0, BATCH - 1)))
    def reset(self, rows):
        self.cache.reset(list(rows))
        for row in rows:
            self.tokens[row], self.undoable[row] = [], 0

    @rule(elsewhere=st.sampled_from(list(BACKENDS)))
    def save_and_load(self, elsewhere):
        file = io.BytesIO()
        torch.save(self.cache.state_dict(), file)
        file.seek(0)
        with use_backend(elsewhere) if self.hasher.buckets is not None else use_backend("torch"):
            there = self.fresh()
        there.load_state_dict(torch.load(file))
        with use_backend(self.backend):
            back = self.fresh()
        back.load_state_dict(there.state_dict())
        self.cache = back

    @rule(new=TOKENS, tail=TOKENS, dtype=DTYPES)
    def merge(self, new, tail, dtype):
        """Others come after these: as if all had come to one cache, but only of the last part any can be undone."""
        with use_backend(self.backend):
            later = self.fresh()
        for tokens in (new, tail):
            key, value, mask = self.tensors(tokens)
            later.append(key.to(dtype), value.to(dtype), key_mask=mask)
        self.cache.state = self.cache.state.merge(later.state)
        self.undoable = [0] * BATCH
        self.put([*new, *tail])

    @precondition(lambda self: self.mechanism == "anna")
    @rule(times=st.integers(1, 9))
    def many_of_one_kind(self, times):
        """So that buckets have many members."""
        self.append([(([0] * HEADS, [1, 2]), (True, True))] * times, torch.float32)

    @invariant()
    def counts(self):
        assert self.cache.lengths == [len(tokens) for tokens in self.tokens]
        assert self.cache.recent == self.undoable


@pytest.mark.slow
@pytest.mark.hypothesis  # so that `make fuzz` runs it
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mechanism", ["anna", "latest_match"])
@pytest.mark.parametrize("hasher", HASHERS.values(), ids=HASHERS)
def test_any_sequence_of_operations_is_that_of_a_list(backend, mechanism, hasher):
    # Hashing of other families is not compiled, so a backend cannot be insisted on there; the tables are its own.
    def sequences():
        machine = Sequences()
        machine.hasher, machine.mechanism, machine.backend = hasher, mechanism, backend
        with use_backend(backend):
            machine.cache = machine.fresh()
        return machine

    few = settings(max_examples=15, stateful_step_count=20)
    run_state_machine_as_test(sequences, settings=few)  # pyright: ignore[reportArgumentType]
