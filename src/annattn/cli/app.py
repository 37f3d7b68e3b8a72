"""The commands of `annattn`, one line each; each is in a file of its name."""

from collections.abc import Sequence

import cyclopts
from rich.console import Console

from annattn import __version__

__all__ = ["COMMANDS", "make_app"]

COMMANDS = {
    "demo": "See everything in three minutes, and write report.html.",
    "report": "Write report.html from saved numbers, or measure again.",
    "bench": "Time ANNA against softmax attention on this machine.",
    "plan": "Find how many tables and hashes a guarantee takes.",
    "attend": "Attend over arrays in files, even larger than memory.",
    "train": "Train a recipe, or continue a run that was stopped.",
    "distill": "Teach a sentence encoder of transformers to attend by ANNA.",
    "sweep": "Measure a trained model over numbers of tables and hashes.",
    "reproduce": "Train from scratch, measure, and write tables and figures.",
    "compare": "Train every efficient attention on the same tasks, and compare.",
    "mpc": "Run massively parallel protocols under enforced limits.",
    "theorems": "Build what the paper's theorems promise, and measure it.",
    "data": "Get a corpus of real text, and check it.",
    "generate": "Stream text from a model that comes with the library.",
    "needle": "Hide facts in a million tokens of real text, and ask.",
    "doctor": "Say what runs here, what does not and why, and test it.",
}
"""Each command with its line in the list; the function NAME in `annattn.cli.NAME`, whose docstring is its help."""

_EXIT_CODES = """\
Exit codes: 0 done; 1 failed, or a theorem does not hold; 2 bad input; 130 interrupted.

Example: annattn attend q.npy k.npy v.npy -o out.npy --tables 8 --hashes 8
"""


def make_app(arguments: Sequence[str]) -> cyclopts.App:
    """The application for these arguments: a command is imported when it is called, not when it is listed.

    >>> [name for name in make_app(["--help"]) if not name.startswith("-")] == list(COMMANDS)
    True
    """
    app = cyclopts.App(
        name="annattn",
        version=__version__,
        help="Approximate nearest neighbour attention.",
        help_format="markdown",  # so that lines are filled, wherever a docstring breaks them
        suppress_keyboard_interrupt=False,
        console=Console(),  # commands with commands of their own would keep the first one they saw
    )
    listing = not arguments or arguments[0].startswith("-")
    if listing:
        app.help_epilogue = _EXIT_CODES
    for at, (name, line) in enumerate(COMMANDS.items()):
        # A line given here would replace the docstring in the command's own help.
        app.command(f"annattn.cli.{name}:{name}", name=name, help=line if listing else None, sort_key=at)
    return app
