"""Peak memory of a contender, measured in a process of its own."""

import json
import subprocess
import sys

from annattn.measure import peak_memory
from benchmarks.contenders import CONTENDERS, tokens


def extra_memory(name: str, n: int) -> int:
    """Bytes by which the peak of a fresh process grows while the contender runs once, its output included."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", name, str(n)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def _main(name: str, size: str) -> None:
    contender, n = CONTENDERS[name], int(size)
    contender.make(1024)()  # compiled and warm before anything counts
    inputs = tokens(n)  # the memory of the inputs does not count
    before = peak_memory()
    del inputs
    # Checking the answer would count, so it is not checked here.
    contender.prepare(n).call()
    sys.stdout.write(json.dumps(peak_memory() - before))


if __name__ == "__main__":
    _main(*sys.argv[1:])
