"""The paper on KDEformer and HyperAttention: their weights are a sparse matrix plus a matrix of low rank."""

import math

import pytest
import torch

from annattn.attention import MECHANISMS
from annattn.attention.sampled_columns import literal_blocks
from annattn.lsh import Hyperplane

N, DIM, BLOCK, COLUMNS = 40, 4, 6, 5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["hyper", "kdeformer"])
def test_the_weights_are_block_entries_per_row_plus_rank_at_most_columns(name, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, N, DIM, generator=generator, dtype=torch.float64)
    hasher = Hyperplane(DIM).sample(tables=1, hashes=3, seed=seed)
    options = {"hasher": hasher, "block": BLOCK, "columns": COLUMNS, "seed": seed}
    # Reading the identity gives the weights as the fast code has them.
    each = torch.eye(N, dtype=torch.float64)
    weights = MECHANISMS[name].attend(query[None, None], key[None, None], each[None, None], **options)[0, 0]
    scores = torch.exp(query @ key.T / math.sqrt(DIM))
    same = literal_blocks(query, key, [True] * N, hasher, BLOCK)
    # In the block an entry is exp(s)/D: that gives D for each row, and from it the factor of every other entry.
    one_over = (weights / scores * same).sum(1) / same.sum(1)
    factor = torch.where(same, torch.nan, weights / scores / one_over[:, None])
    column = factor.nanmedian(0).values.nan_to_num(0.0)
    assert torch.allclose(factor.nan_to_num(0.0), torch.where(same, 0.0, column.expand(N, N)), rtol=1e-9, atol=1e-12)
    low_rank = one_over[:, None] * scores * column
    sparse = weights - low_rank
    assert 0 < (column > 1e-9).sum() <= COLUMNS
    assert torch.linalg.matrix_rank(low_rank) <= COLUMNS < torch.linalg.matrix_rank(weights)
    assert ((sparse.abs() > 1e-12) <= same).all()
    assert (sparse.abs() > 1e-12).sum(1).max() <= BLOCK
