"""`annattn generate`: stream text from a model that comes with the library."""

import os
import sys
import time

from annattn.checks import require_count, require_number
from annattn.cli.terminal import Integer, JsonFlag, print_json, shows_progress, stderr_console, stdout_console

__all__ = ["generate"]


def generate(
    *,
    model: str = "code",
    prompt: str = "def ",
    n: Integer = 400,
    temperature: float = 0.8,
    seed: Integer = 0,
    as_json: JsonFlag = False,
) -> None:
    """Stream text from a model that comes with the library; a byte costs the same, however many came before.

    The model is small, and what it writes is only like its corpus. In a terminal, the margin of each line says how many
    bytes came before it, and at how many per second the line before it came. The total goes to standard error.

    Example: annattn generate --model code --prompt "def " --n 1000

    Args:
        model: code, or the path of a text model that annattn train wrote.
        prompt: what the text begins with.
        n: how many bytes to write.
        temperature: 0 takes the likeliest byte, 1 draws from what the model expects.
        seed: of the draws.
        as_json: print the text and the seconds per byte as JSON, at the end.
    """
    from annattn.experiments.text.generating import stream
    from annattn.experiments.text.trained import text_model

    n = require_count("--n", n)
    require_number("--temperature", temperature, "a number of at least 0", low=0)
    # As it was typed: a terminal may send bytes that are no UTF-8.
    given = os.fsencode(prompt)
    chosen = text_model(model)
    margin = _Margin(shows_progress(stdout_console()))
    started, written = time.perf_counter(), bytearray()
    for byte, shown in stream(chosen, given, n, temperature=temperature, seed=seed):
        if not as_json:
            if not written:  # only now: loading kernels may have had something to say
                begun = given.decode("utf-8", "replace")
                sys.stdout.write(margin.after(0) + begun.replace("\n", "\n" + margin.after(0)))
            sys.stdout.write(shown.replace("\n", "\n" + margin.after(len(written) + 1)) if "\n" in shown else shown)
            sys.stdout.flush()
        written.append(byte)
    seconds = time.perf_counter() - started
    if as_json:
        text = (given + bytes(written)).decode("utf-8", "replace")
        print_json({"model": model, "text": text, "bytes": n, "seconds": seconds})
        return
    sys.stdout.write("\n")
    stderr_console().print(f"{n:,} bytes, {n / seconds:,.0f} per second", markup=False)


class _Margin:
    """What stands at the left of each line in a terminal: bytes so far, and the speed of the line before."""

    def __init__(self, shown: bool) -> None:
        self.shown, self.bytes, self.time = shown, 0, time.perf_counter()

    def after(self, count: int) -> str:
        if not self.shown:
            return ""
        now, written = time.perf_counter(), count - self.bytes
        speed = f"{written / (now - self.time):,.0f}/s" if written else ""
        self.bytes, self.time = count, now
        return f"\x1b[2m{count:>9,} {speed:>8} │\x1b[0m "
