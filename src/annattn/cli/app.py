"""The commands of `annattn`, one line each; their work is elsewhere."""

import cyclopts

from annattn import __version__
from annattn.cli.bench import bench
from annattn.cli.demo import demo
from annattn.cli.learning import sweep, train_recipe
from annattn.cli.machines import mpc
from annattn.cli.report import report
from annattn.cli.reproduction import reproduce
from annattn.cli.theorems import theorems

__all__ = ["app"]

app = cyclopts.App(name="annattn", version=__version__, help="Approximate nearest neighbour attention.")
app.command(demo)
app.command(report)
app.command(bench)
app.command(mpc)
app.command(train_recipe, name="train")
app.command(sweep)
app.command(reproduce)
app.command(theorems)
