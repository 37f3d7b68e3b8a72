"""`annattn bench`: how fast ANNA is on this machine."""

from annattn.checks import require_count
from annattn.cli.part_progress import part_progress
from annattn.cli.part_tables import speed_table
from annattn.cli.terminal import Integer, JsonFlag, print_json, print_line, stderr_console, stdout_console
from annattn.lsh.codes import CODE_BITS
from annattn.measure import describe_machine, lengths, measure_speed
from annattn.report import PARTS, Settings

__all__ = ["bench"]

_LARGEST = 2**24  # of any size: beyond it no answer would come in days


def bench(
    *,
    longest: Integer = 16_384,
    tables: Integer = 8,
    hashes: Integer = 8,
    dim: Integer = 64,
    heads: Integer = 1,
    batch: Integer = 1,
    seed: Integer = 0,
    as_json: JsonFlag = False,
) -> None:
    """Time ANNA, torch's softmax attention and plain copying on this machine, and find where ANNA becomes faster.

    Answers are checked before they are timed, and beside each speed stands what the tables and hashes are worth at
    that length. The comparison with other libraries and the figures of
    docs/performance.md come from `make bench` in a clone of the repository.

    Example: annattn bench --batch 8 --heads 12 --dim 32 --longest 4096

    Args:
        longest: the largest number of tokens; lengths double from 64.
        tables: hash tables.
        hashes: hash functions per table.
        dim: width of a head.
        heads: number of heads.
        batch: sequences per call.
        seed: determines the tokens and the hash functions.
        as_json: print the numbers as JSON and nothing else.
    """
    require_count("--hashes", hashes, most=CODE_BITS, hint="answers are checked by codes of 63 bits")
    sizes_given = {"--longest": longest, "--tables": tables, "--dim": dim, "--heads": heads, "--batch": batch}
    for name, size in sizes_given.items():
        require_count(name, size, most=_LARGEST)
    sizes = lengths(longest, shortest=64)
    machine, stderr = describe_machine(), stderr_console()
    expected = {"speed": PARTS["speed"].expected_seconds(Settings(longest=longest))}
    try:
        with part_progress(stderr, expected) as progress:
            found = measure_speed(
                sizes, tables=tables, hashes=hashes, dim=dim, heads=heads, batch=batch, seed=seed,
                progress=lambda done, what: progress("speed", done, what),
            )  # fmt: skip
            progress("speed", 1.0, "")
    except KeyboardInterrupt:
        stderr.print("stopped")
        raise SystemExit(130) from None
    if as_json:
        print_json({"machine": machine, **found})
        return
    stdout_console().print(speed_table(found))
    for name, causal in (("faster_from", ""), ("causal_faster_from", " causal")):
        first = found[name]
        if first is None:
            print_line(f"ANNA is not faster than{causal} softmax attention up to {sizes[-1]:,} tokens here")
        else:
            print_line(f"ANNA is faster than{causal} softmax attention here from {first:,} tokens")
