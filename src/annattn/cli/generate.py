"""`annattn generate`: stream text from a model that comes with the library."""

import sys
import time

from annattn.checks import require_count, require_number
from annattn.cli.terminal import Integer, JsonFlag, print_json, stderr_console

__all__ = ["generate"]


def generate(
    *,
    model: str = "code",
    prompt: str = "def ",
    n: Integer = 400,
    temperature: float = 0.7,
    seed: Integer = 0,
    as_json: JsonFlag = False,
) -> None:
    """Stream text from a model that comes with the library; a byte costs the same, however many came before.

    The model is small, and what it writes is only like its corpus. Bytes per second go to standard error at the end.

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
    chosen = text_model(model)
    started, written = time.perf_counter(), bytearray()
    if not as_json:
        sys.stdout.write(prompt)
    for byte, shown in stream(chosen, prompt.encode(), n, temperature=temperature, seed=seed):
        written.append(byte)
        if not as_json:
            sys.stdout.write(shown)
            sys.stdout.flush()
    seconds = time.perf_counter() - started
    if as_json:
        text = (prompt.encode() + bytes(written)).decode("utf-8", "replace")
        print_json({"model": model, "text": text, "bytes": n, "seconds": seconds})
        return
    sys.stdout.write("\n")
    stderr_console().print(f"{n:,} bytes, {n / seconds:,.0f} per second", markup=False)
