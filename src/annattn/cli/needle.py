"""`annattn needle`: hide facts in real text, read it, and ask for them."""

import time

import numpy as np

from annattn.checks import require_count
from annattn.cli.terminal import Integer, JsonFlag, print_json, print_line, progress_bar, stderr_console
from annattn.errors import InputError
from annattn.seeds import check_seed

__all__ = ["needle"]


def needle(
    *,
    tokens: Integer = 100_000,
    facts: Integer = 64,
    model: str = "needle",
    seed: Integer = 0,
    corpus: str = "enwik8",
    split: str = "test",
    as_json: JsonFlag = False,
) -> None:
    """Hide facts in real text, read all of it, and ask for them. Time is linear in the length, and memory nearly so.

    A token is a byte of enwik8, of a split that no model was trained on. Facts are lines such as "The magic number
    of qwerty is 123456." A fact counts if all its digits come back.

    Example: annattn needle --tokens 1000000

    Args:
        tokens: how many bytes of text to read.
        facts: how many are hidden in it.
        model: needle, or the path of a text model that annattn train wrote.
        seed: decides facts, places and the part of the text.
        corpus: which text, one of those that annattn data lists.
        split: validation or test.
        as_json: print the result as JSON.
    """
    from annattn.data import load
    from annattn.experiments.text.needles import Haystack, ask
    from annattn.experiments.text.trained import text_model
    from annattn.measure.memory import peak_memory

    tokens, facts, seed = require_count("--tokens", tokens), require_count("--facts", facts), check_seed(seed)
    part = load(corpus).part(split)
    if tokens > len(part):
        raise InputError("--tokens", given=f"{tokens:,}", expected=f"at most {len(part):,}, the bytes of {split}")
    chosen = text_model(model)
    start = int(np.random.default_rng(seed).integers(len(part) - tokens + 1))
    hay = Haystack.make(np.asarray(part[start : start + tokens]), facts, seed)
    with progress_bar(stderr_console()) as progress:
        line = progress.add_task("reading", total=tokens, note="")
        started = time.perf_counter()

        def report(done: int) -> None:
            rate = done / (time.perf_counter() - started)
            progress.update(line, completed=min(done, tokens), note=f"{rate:,.0f} tokens/s")

        answers = ask(chosen, hay, report=report)
    seconds = time.perf_counter() - started
    found = {
        "tokens": tokens,
        "facts": facts,
        "right": int(answers.is_right.sum()),
        "share": answers.share,
        "digits": answers.digits,
        "seconds": seconds,
        "tokens_per_second": (tokens + hay.facts.size) / seconds,
        "state_bytes": answers.state_bytes,
        "peak_bytes": peak_memory(),
    }
    if as_json:
        print_json(found)
        return
    print_line(f"{found['right']:,} of {facts:,} facts came back from {tokens:,} tokens ({100 * answers.share:.2f} %)")
    print_line(
        f"{seconds:.1f} s, {found['tokens_per_second']:,.0f} tokens per second; "
        f"the memory holds {answers.state_bytes / 2**20:,.0f} MiB"
    )
