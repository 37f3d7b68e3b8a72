"""The paper's attention, word for word: slow, for one head, in float64, and the truth for everything fast.

Rows are (n, dim) tensors of one head. Hash codes appear as the tuples they are, g_u(x) = (h_u1(x), …, h_uz(x)), and
hash tables as dicts, so nothing here shares code with the kernels. Beside each mechanism stands its matrix w_ij, as a
function of the queries, the keys and who sees whom, written with what is here.
"""

import torch
from torch import Tensor

from annattn.lsh import Hasher, HashFamily

__all__ = [
    "algorithm_1",
    "attend",
    "collision_counts",
    "collision_probabilities",
    "hash_tuples",
    "linear_memory",
    "normalised",
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
    g_query, g_key, value = hash_tuples(query, hasher), hash_tuples(key, hasher), value.double()
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
    g_query, g_key, value = hash_tuples(query, hasher), hash_tuples(key, hasher), value.double()
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
    g_query, g_key = hash_tuples(query, hasher), hash_tuples(key, hasher)
    counts = torch.zeros(len(query), len(key), dtype=torch.int64)
    for i in range(len(query)):
        for j in range(len(key)):
            counts[i, j] = sum(g_query[i][u] == g_key[j][u] for u in range(hasher.tables))
    return counts


def attend(weights: Tensor, value: Tensor) -> Tensor:
    """Σ_j w_ij v_j; a value of weight zero takes no part, whatever it is.

    >>> attend(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0], [float("nan")]]))
    tensor([[2.]], dtype=torch.float64)
    """
    terms = weights.double()[:, :, None] * value.double()[None]
    return torch.where(weights[:, :, None] == 0, 0.0, terms).sum(1)


def collision_probabilities(query: Tensor, key: Tensor, family: HashFamily, hashes: int) -> Tensor:
    """p^z of every pair, by the family's stated probability at the distance of the rows scaled to unit norm."""
    query, key = (x.double() / x.double().norm(dim=1, keepdim=True).clamp(min=1e-12) for x in (query, key))
    found = torch.zeros(len(query), len(key), dtype=torch.float64)
    for i in range(len(query)):
        for j in range(len(key)):
            found[i, j] = family.collision_probability((query[i] - key[j]).norm().item()) ** hashes
    return found


def hash_tuples(rows: Tensor, hasher: Hasher) -> list[list[object]]:
    """g_u of every row as a tuple; a row without a bucket gets objects that equal nothing."""
    digits, hashable = hasher.digits(rows).tolist(), hasher.hashable(rows).tolist()
    return [[tuple(g) if ok else object() for g in of_row] for of_row, ok in zip(digits, hashable, strict=True)]


def normalised(scores: Tensor) -> Tensor:
    """Rows divided by their sums; a row of zeros stays.

    >>> normalised(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    tensor([[0.2500, 0.7500],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    total = scores.double().sum(1, keepdim=True)
    return torch.where(total > 0, scores.double() / total, 0.0)
