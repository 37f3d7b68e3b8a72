"""`annattn bench`: how fast ANNA is on the machine at hand."""

from rich.console import Console

from annattn.cli.part_progress import watched
from annattn.cli.part_tables import speed_table
from annattn.cli.terminal import AsJson, Whole, print_json
from annattn.measure import describe_machine, lengths, measure_speed
from annattn.report import PARTS, Order

__all__ = ["bench"]


def bench(
    *,
    longest: Whole = 16_384,
    tables: Whole = 8,
    hashes: Whole = 8,
    dim: Whole = 64,
    heads: Whole = 1,
    seed: Whole = 0,
    as_json: AsJson = False,
) -> None:
    """Time ANNA, torch's softmax attention and plain copying here, and say from which length ANNA is the faster.

    Answers are checked before they are timed. The comparison with other libraries, and every figure of
    docs/performance.md, is `make bench` in a clone of the repository.

    Example: annattn bench --longest 65536 --tables 16 --heads 4

    Args:
        longest: the largest number of tokens; lengths are doubled from 64.
        tables: hash tables.
        hashes: hash functions a table.
        dim: width of a head.
        heads: how many.
        seed: decides the tokens and the hash functions.
        as_json: print the numbers as JSON and nothing else.
    """
    sizes = lengths(longest, shortest=64)
    about, aside = describe_machine(), Console(stderr=True, highlight=False)
    try:
        with watched(aside, {"speed": PARTS["speed"].seconds(Order(longest=longest))}) as tell:
            found = measure_speed(
                sizes,
                tables=tables,
                hashes=hashes,
                dim=dim,
                heads=heads,
                seed=seed,
                progress=lambda done, what: tell("speed", done, what),
            )
    except KeyboardInterrupt:
        aside.print("stopped")
        raise SystemExit(130) from None
    if as_json:
        print_json({"machine": about, **found})
        return
    console = Console(highlight=False)
    console.print(speed_table(found))
    first = found["faster_from"]
    if first is None:
        console.print(f"ANNA is not faster than softmax attention up to {sizes[-1]:,} tokens here")
    else:
        console.print(f"ANNA is faster than softmax attention here from {first:,} tokens on (lengths doubled from 64)")
