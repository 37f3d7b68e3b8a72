"""Every efficient attention on the same tasks: contenders, tasks, runs, and the table of what they found."""

from annattn.experiments.comparison.all_runs import run_all
from annattn.experiments.comparison.contenders import CONTENDERS, Contender
from annattn.experiments.comparison.running import Run, next_runs, planned_runs, read_runs, run_one
from annattn.experiments.comparison.settings import PROFILES, ComparedTask, Profile
from annattn.experiments.comparison.table import frontier, mean_error, summary

__all__ = [
    "CONTENDERS",
    "PROFILES",
    "ComparedTask",
    "Contender",
    "Profile",
    "Run",
    "frontier",
    "mean_error",
    "next_runs",
    "planned_runs",
    "read_runs",
    "run_all",
    "run_one",
    "summary",
]
