"""The paper's attention, word for word: slow, for one head, in float64, and the truth for everything fast.

Rows are (n, dim) tensors of one head. Hash codes appear as the tuples they are, g_u(x) = (h_u1(x), …, h_uz(x)), and
hash tables as dicts, so nothing here shares code with the kernels. `weights` functions return the matrix w_ij.
"""

import torch
from torch import Tensor

from annattn.lsh import Hasher, HashFamily

__all__ = [
    "algorithm_1",
    "anna_weights",
    "attend",
    "collision_counts",
    "exact_match_weights",
    "expected_collision_weights",
    "expected_latest_weights",
    "latest_match_weights",
    "linear_memory",
    "low_rank_weights",
    "reformer_weights",
    "softmax_weights",
    "visible",
]


def visible(n_queries: int, n_keys: int, *, is_causal: bool = False, key_mask: Tensor | None = None) -> Tensor:
    """Which key j a query i may see; causal: j − n_keys ≤ i − n_queries.

    >>> visible(2, 3, is_causal=True).int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    seen = torch.zeros(n_queries, n_keys, dtype=torch.bool)
    for i in range(n_queries):
        for j in range(n_keys):
            seen[i, j] = (not is_causal or j - n_keys <= i - n_queries) and (key_mask is None or bool(key_mask[j]))
    return seen


def algorithm_1(query: Tensor, key: Tensor, value: Tensor, hasher: Hasher) -> Tensor:
    """Algorithm 1: "ANNA implementation with LSH family ℋ, ℓ hash tables, and z hash functions/table".

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=2, hashes=1)
    >>> algorithm_1(torch.tensor([[1.0]]), torch.tensor([[2.0], [-1.0]]), torch.tensor([[5.0], [7.0]]), hasher)
    tensor([[5.]], dtype=torch.float64)
    """
    g_query, g_key, value = _tuples(query, hasher), _tuples(key, hasher), value.double()
    tables = []
    for u in range(hasher.tables):  # preprocessing phase
        table = {}
        for j in range(len(key)):
            v, a = table.get(g_key[j][u], (torch.zeros_like(value[j]), 0))
            table[g_key[j][u]] = (v + value[j], a + 1)
        tables.append(table)
    attn = torch.zeros(len(query), value.shape[1], dtype=torch.float64)
    for i in range(len(query)):  # query phase
        v_sum, count = torch.zeros(value.shape[1], dtype=torch.float64), 0
        for u in range(hasher.tables):
            if g_query[i][u] in tables[u]:
                v, a = tables[u][g_query[i][u]]
                v_sum, count = v_sum + v, count + a
        if count:  # the paper leaves 0/0 open; zero, as in EM Attention
            attn[i] = v_sum / count
    return attn


def linear_memory(query: Tensor, key: Tensor, value: Tensor, hasher: Hasher) -> Tensor:
    """The appendix's "Linear memory ANNA implementation": one table at a time, with buckets for queries only.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=2, hashes=1)
    >>> linear_memory(torch.tensor([[1.0]]), torch.tensor([[2.0], [-1.0]]), torch.tensor([[5.0], [7.0]]), hasher)
    tensor([[5.]], dtype=torch.float64)
    """
    g_query, g_key, value = _tuples(query, hasher), _tuples(key, hasher), value.double()
    sums = [(torch.zeros(value.shape[1], dtype=torch.float64), 0) for _ in range(len(query))]
    for u in range(hasher.tables):
        table = {g_query[i][u]: (torch.zeros(value.shape[1], dtype=torch.float64), 0) for i in range(len(query))}
        for j in range(len(key)):
            if g_key[j][u] in table:
                v, a = table[g_key[j][u]]
                table[g_key[j][u]] = (v + value[j], a + 1)
        for i in range(len(query)):
            v, a = table[g_query[i][u]]
            sums[i] = (sums[i][0] + v, sums[i][1] + a)
    attn = torch.zeros(len(query), value.shape[1], dtype=torch.float64)
    for i, (v, a) in enumerate(sums):
        if a:
            attn[i] = v / a
    return attn


def collision_counts(query: Tensor, key: Tensor, hasher: Hasher) -> Tensor:
    """c_ij: in how many tables g_u(q_i) = g_u(k_j), pair by pair.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=2, hashes=1)
    >>> collision_counts(torch.tensor([[1.0]]), torch.tensor([[2.0], [-1.0]]), hasher)
    tensor([[2, 0]])
    """
    g_query, g_key = _tuples(query, hasher), _tuples(key, hasher)
    counts = torch.zeros(len(query), len(key), dtype=torch.int64)
    for i in range(len(query)):
        for j in range(len(key)):
            counts[i, j] = sum(g_query[i][u] == g_key[j][u] for u in range(hasher.tables))
    return counts


def anna_weights(query: Tensor, key: Tensor, seen: Tensor, *, hasher: Hasher) -> Tensor:
    """w_ij = c_ij / Σ_j' c_ij' over the keys seen.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=2, hashes=1)
    >>> anna_weights(torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), visible(1, 2), hasher=hasher)
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    return _normalised(collision_counts(query, key, hasher) * seen)


def exact_match_weights(query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    """w_ij = 1/|𝒩(q_i)| where k_j = q_i.

    >>> exact_match_weights(torch.tensor([[1], [4]]), torch.tensor([[1], [2], [1]]), visible(2, 3))
    tensor([[0.5000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    return _normalised((query[:, None] == key[None]).all(-1) * seen)


def latest_match_weights(query: Tensor, key: Tensor, seen: Tensor, *, hasher: Hasher) -> Tensor:
    """In every table all weight on the last seen key of the query's bucket; the mean over the tables with one.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=2, hashes=1)
    >>> latest_match_weights(torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), visible(1, 2), hasher=hasher)
    tensor([[0., 1.]], dtype=torch.float64)
    """
    g_query, g_key = _tuples(query, hasher), _tuples(key, hasher)
    hits = torch.zeros(len(query), len(key), dtype=torch.int64)
    for i in range(len(query)):
        for u in range(hasher.tables):
            met = [j for j in range(len(key)) if seen[i, j] and g_query[i][u] == g_key[j][u]]
            if met:
                hits[i, met[-1]] += 1
    return _normalised(hits)


def softmax_weights(query: Tensor, key: Tensor, seen: Tensor, *, beta: float) -> Tensor:
    """softmax(β ⟨q_i, k_j⟩) with queries and keys scaled to unit norm.

    >>> softmax_weights(torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), visible(1, 2), beta=1.0)
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    query, key = query.double(), key.double()
    unit = [x / x.norm(dim=1, keepdim=True).clamp(min=1e-12) for x in (query, key)]
    return _normalised(torch.exp(beta * (unit[0] @ unit[1].T)) * seen)


def expected_collision_weights(query: Tensor, key: Tensor, seen: Tensor, *, family: HashFamily, hashes: int) -> Tensor:
    """Pr[g_u(q_i) = g_u(k_j)] = p^z at the distance of the unit vectors, over its sum over the keys seen.

    >>> import annattn as aa
    >>> x = torch.eye(2)
    >>> expected_collision_weights(x, x, visible(2, 2), family=aa.lsh.Hyperplane(2), hashes=2)
    tensor([[0.8000, 0.2000],
            [0.2000, 0.8000]], dtype=torch.float64)
    """
    return _normalised(_probabilities(query, key, family, hashes) * seen)


def expected_latest_weights(query: Tensor, key: Tensor, seen: Tensor, *, family: HashFamily, hashes: int) -> Tensor:
    """Pr[k_j meets q_i and no later key seen does], each key with its own independent chance.

    >>> import annattn as aa
    >>> x = torch.eye(2)
    >>> expected_latest_weights(x, x, visible(2, 2), family=aa.lsh.Hyperplane(2), hashes=1)
    tensor([[0.5000, 0.5000],
            [0.0000, 1.0000]], dtype=torch.float64)
    """
    meets = _probabilities(query, key, family, hashes) * seen
    weights = torch.zeros_like(meets)
    for i in range(len(query)):
        none_later = 1.0
        for j in reversed(range(len(key))):
            weights[i, j] = meets[i, j] * none_later
            none_later *= 1 - meets[i, j].item()
    return weights


def low_rank_weights(query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
    """Q'(X) K'(X)ᵀ, which the Definition does not normalise.

    >>> low_rank_weights(torch.tensor([[1.0]]), torch.tensor([[2.0], [3.0]]), visible(1, 2))
    tensor([[2., 3.]], dtype=torch.float64)
    """
    return query.double() @ key.double().T * seen


def reformer_weights(query_key: Tensor, *, chunk: int, hasher: Hasher) -> Tensor:
    """exp⟨q_i, q_j⟩ normalised over the chunk of i.

    >>> import annattn as aa
    >>> hasher = aa.lsh.Hyperplane(1).sample(tables=1, hashes=1)
    >>> reformer_weights(torch.tensor([[1.0], [1.0], [1.0]]), chunk=2, hasher=hasher)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    n = len(query_key)
    (codes,) = hasher.together(query_key)
    label = torch.zeros(n, dtype=torch.int64)
    for place, row in enumerate(sorted(range(n), key=codes[:, 0].tolist().__getitem__)):
        label[row] = place // chunk
    rows = query_key.double()
    return _normalised(torch.exp(rows @ rows.T) * (label[:, None] == label[None]))


def attend(weights: Tensor, value: Tensor) -> Tensor:
    """Σ_j w_ij v_j; a value of weight zero takes no part, whatever it is.

    >>> attend(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0], [float("nan")]]))
    tensor([[2.]], dtype=torch.float64)
    """
    terms = weights.double()[:, :, None] * value.double()[None]
    return torch.where(weights[:, :, None] == 0, 0.0, terms).sum(1)


def _probabilities(query: Tensor, key: Tensor, family: HashFamily, hashes: int) -> Tensor:
    """p^z of every pair, by the family's stated probability at the distance of the rows scaled to unit norm."""
    query, key = (x.double() / x.double().norm(dim=1, keepdim=True).clamp(min=1e-12) for x in (query, key))
    found = torch.zeros(len(query), len(key), dtype=torch.float64)
    for i in range(len(query)):
        for j in range(len(key)):
            found[i, j] = family.collision_probability((query[i] - key[j]).norm().item()) ** hashes
    return found


def _tuples(rows: Tensor, hasher: Hasher) -> list[list[object]]:
    """g_u of every row as a tuple; a row without a bucket gets objects that equal nothing."""
    digits, hashable = hasher.digits(rows).tolist(), hasher.hashable(rows).tolist()
    return [[tuple(g) if ok else object() for g in of_row] for of_row, ok in zip(digits, hashable, strict=True)]


def _normalised(scores: Tensor) -> Tensor:
    total = scores.double().sum(1, keepdim=True)
    return torch.where(total > 0, scores.double() / total, 0.0)
