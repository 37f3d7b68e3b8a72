"""`annattn doctor`: what runs here, what does not and why, and whether its answers are right."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import annattn
from annattn.attention import anna_attention
from annattn.cli.terminal import JsonFlag, print_json, print_line
from annattn.errors import BackendError
from annattn.kernels import BACKENDS, use_backend
from annattn.lsh import Hyperplane
from annattn.measure import describe_machine
from annattn.measure.answers import check_answer, collision_counts, random_inputs

__all__ = ["doctor"]


def doctor(*, as_json: JsonFlag = False) -> None:
    """Say which backends run here and why the others do not, and test each against the truth.

    Also versions, threads, and where compiled kernels are kept. Exit code 1 if a backend gives a wrong answer. Issues
    should come with this output.

    Example: annattn doctor

    Args:
        as_json: print JSON instead of lines.
    """
    machine = describe_machine()
    found = {
        "machine": machine | {"versions": machine["versions"] | {"triton": _version("triton")}},
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "kernels": _folders(),
        "backends": {name: _examine(name) for name in BACKENDS},
    }
    if as_json:
        print_json(found)
    else:
        for line in _lines(found):
            print_line(line)
    if any(one["state"] == "wrong" for one in found["backends"].values()):
        raise SystemExit(1)


def _examine(name: str) -> dict[str, Any]:
    """Attend with one backend, on the device it is for, and compare with the sum over all pairs in float64."""
    query, key, value = random_inputs(64, heads=2, dim=16)
    hasher = Hyperplane(16).sample(tables=4, hashes=3)
    on_gpu = name.startswith("triton") and torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
    device = "cuda" if on_gpu else "cpu"
    error = 0.0
    try:
        with use_backend(name):
            for is_causal in (False, True):
                q, k, v = (x.to(device) for x in (query, key, value))
                out = anna_attention(q, k, v, hasher.to(device), is_causal=is_causal)
                weights = collision_counts(query, key, hasher, is_causal=is_causal)
                error = max(error, check_answer(name, out.cpu(), weights, value))
    except BackendError as refusal:
        return {"state": "not here", "why": str(refusal).split(": ", 1)[-1]}
    except Exception as failure:  # whatever goes wrong in a kernel is what is asked for
        return {"state": "wrong", "why": f"{type(failure).__name__}: {failure}"}
    return {"state": "right", "device": device, "largest_error": error}


def _folders() -> dict[str, str]:
    beside = str(Path(annattn.__file__).parent / "kernels" / "numba" / "__pycache__")
    return {
        "numba": os.environ.get("NUMBA_CACHE_DIR") or beside,
        "triton": os.environ.get("TRITON_CACHE_DIR") or str(Path.home() / ".triton" / "cache"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _lines(found: dict[str, Any]) -> list[str]:
    machine = found["machine"]
    versions = ", ".join(f"{name} {number or 'not installed'}" for name, number in machine["versions"].items())
    lines = [
        f"versions: {versions}",
        f"machine: {machine['processor']}, {machine['cores']} cores, {machine['system']}",
        f"threads: {machine['threads']} of torch",
        f"GPU: {found['gpu'] or 'none visible to torch'}",
        *(f"compiled kernels, {name}: {folder}" for name, folder in found["kernels"].items()),
    ]
    for name, one in found["backends"].items():
        if one["state"] == "right":
            lines.append(f"backend {name}: right on {one['device']}, largest error {one['largest_error']:.1e}")
        else:
            lines.append(f"backend {name}: {one['state']}: {one['why']}")
    return lines
