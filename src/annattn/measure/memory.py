"""The memory a process has used."""

import resource
from pathlib import Path

__all__ = ["peak_memory"]


def peak_memory() -> int:
    """The most bytes this process ever held in memory.

    On Linux the number is of this process alone; `ru_maxrss` starts from the peak of the process that started it.

    >>> peak_memory() > 2**20
    True
    """
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
