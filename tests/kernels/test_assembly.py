"""Every GPU kernel that ships assembles for the GPUs people own, without spilling and within stated limits."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

import annattn as aa
from annattn.kernels import use_backend

pytestmark = [
    pytest.mark.triton,
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("triton"), reason="Triton is not installed"),
]
MOST_SHARED = 100 * 1000  # bytes: what one program may have on every one of these GPUs
TARGETS = {"sm_80", "sm_90", "sm_100"}


@pytest.fixture(scope="module")
def assembled():
    # In a process of its own: Triton decides at its import whether kernels are interpreted or compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "annattn.kernels.triton.assembly"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def name_of(configuration) -> tuple[str, str]:
    return configuration["kernel"], json.dumps([configuration[part] for part in ("types", "constants", "warps")])


def test_nothing_spills_and_shared_memory_is_within_the_limit(assembled):
    for one in assembled:
        assert one["spilled"] == 0, one
        assert 0 < one["registers"] <= 255, one
        assert one["shared"] <= MOST_SHARED, one
    assert {one["target"] for one in assembled} == TARGETS


def test_every_binary_that_calls_ask_for_is_among_them(assembled, monkeypatch):
    from annattn.kernels.triton import assembly, atomic, band, decode, hashing, outer, sums

    asked = {}

    def note(kernel, programs, *arguments, warps=4, registers=None, **constants):
        if 0 not in programs:
            found = assembly.configuration(kernel, arguments, warps, registers, **constants)
            asked[found.kernel, json.dumps([found.types, found.constants, found.warps])] = True

    for module in (atomic, band, decode, hashing, outer, sums):
        monkeypatch.setattr(module, "launch", note)
    monkeypatch.setattr(torch, "empty", torch.zeros)  # what no kernel fills is read all the same
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    for backend in ("triton", "triton_atomic"):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for family, hashes in ((aa.lsh.Hyperplane(24), 14), (aa.lsh.CrossPolytope(100), 2)):
                hasher = family.sample(tables=3, hashes=hashes)
                query, key, value = (torch.randn(2, 4, 9, d).to(dtype) for d in (family.dim, family.dim, 80))
                for x in (query, key, value):
                    x.requires_grad_()
                with use_backend(backend):
                    for is_causal in (False, True):
                        aa.anna_attention(query, key, value, hasher, is_causal=is_causal).sum().backward()
                    aa.latest_match_attention(query, key, value, hasher).sum().backward()
                    aa.window_attention(query, key, value, hasher, window=3).sum().backward()
            for hashes in (5, 12):
                narrow = aa.lsh.Hyperplane(24).sample(tables=3, hashes=hashes)
                token = [torch.randn(1, 1, 1, d).to(dtype) for d in (24, 24, 80)]
                with use_backend(backend):
                    aa.BucketCache(narrow, value_dim=80).step(*token)
                    aa.WindowCache(narrow, value_dim=80, window=2).step(*token)
    assert {kernel for kernel, _ in asked} == {one["configuration"]["kernel"] for one in assembled} - {
        "_hash_rotations"
    }
    assert set(asked) <= {name_of(one["configuration"]) for one in assembled}
