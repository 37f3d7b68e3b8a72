"""Agreement with the packages people use, on the cases both define. Skipped unless `make bench` has installed them."""

import pytest
import torch

from annattn.attention import (
    LinformerConfig,
    PerformerFeatures,
    linformer_attention,
    low_rank_attention,
    reformer_rounds_attention,
    routing_attention,
)
from annattn.lsh import Hyperplane

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_performer_equals_performer_pytorch_without_epsilon():
    # With it they differ: that package adds it after dividing by the largest feature of all keys.
    peer = pytest.importorskip("performer_pytorch.performer_pytorch")
    query, key, value = rows(3, 2, 3, 20, 8)
    features = PerformerFeatures(8, count=24, epsilon=0)
    options = {"projection_matrix": features.directions, "eps": 0}
    mapped = [peer.softmax_kernel(x, is_query=q, **options) for x, q in ((query, True), (key, False))]
    expected = peer.linear_attention(*mapped, value)
    torch.testing.assert_close(low_rank_attention(query, key, value, features=features), expected)


def test_linformer_equals_linformer():
    peer = pytest.importorskip("linformer").LinformerSelfAttention(12, seq_len=16, k=5, heads=3).double()
    x = rows(2, 10, 12)
    split = [layer(x).unflatten(-1, (3, 4)).transpose(1, 2) for layer in (peer.to_q, peer.to_k, peer.to_v)]
    out = linformer_attention(*split, key_map=peer.proj_k.T, value_map=peer.proj_v.T)
    torch.testing.assert_close(peer.to_out(out.transpose(1, 2).flatten(2)), peer(x))
    assert LinformerConfig(length=16, mixtures=5).largest_length == peer.seq_len


@pytest.mark.parametrize("is_causal", [False, True])
def test_reformer_equals_reformer_pytorch_where_chunks_cover_the_sequence(monkeypatch, is_causal):
    # With more chunks they differ: its chunks are cut across buckets, and wrap around.
    peer = pytest.importorskip("reformer_pytorch.reformer_pytorch")
    query_key, value = rows(2, 1, 1, 8, 4)
    hasher = Hyperplane(4).sample(tables=1, hashes=1)
    attention = peer.LSHAttention(bucket_size=4, n_hashes=1, causal=is_causal, attend_across_buckets=False)
    codes = hasher(query_key)[0, :, :, 0]
    monkeypatch.setattr(attention, "hash_vectors", lambda *_, **__: codes)
    expected = attention(query_key[0], value[0])[0]
    out = reformer_rounds_attention(query_key, value, hasher, chunk=8, is_causal=is_causal)
    torch.testing.assert_close(out[0], expected, rtol=1e-6, atol=1e-6)


def test_routing_equals_routing_transformer():
    # Causal calls differ: there a centroid takes its nearest tokens whenever they come.
    peer = pytest.importorskip("routing_transformer.routing_transformer")
    query, key, value = rows(3, 2, 1, 12, 4)
    attention = peer.KmeansAttention(num_clusters=3, window_size=4, num_heads=1, head_dim=4).double().eval()
    centroids = torch.nn.functional.normalize(rows(3, 4), dim=-1)
    attention.kmeans.means.data.copy_(centroids[None])
    attention.kmeans.initted.data.fill_(True)
    out = routing_attention(query, key, value, centroids=centroids, window=4)
    # It divides by the number of clusters plus 1e-5.
    torch.testing.assert_close(out, attention(query, key, value)[0], rtol=2e-5, atol=1e-9)
