"""The machine that measured, so that no number stands without it."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import annattn

__all__ = ["machine"]


def machine() -> dict[str, Any]:
    """Processor, cores, threads, how busy the machine already was, versions, and the time in UTC.

    >>> sorted(machine()["versions"])
    ['annattn', 'numba', 'numpy', 'python', 'torch']
    """
    versions = {"annattn": annattn.__version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "numba"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "measured": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": versions,
    }


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    for line in described.read_text().splitlines() if described.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
