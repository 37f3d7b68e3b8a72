"""Started by torchrun: trains a tiny recipe, and on its first life kills one rank at a step."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from annattn.experiments import training
from annattn.experiments.ranks import join_torchrun, leave_torchrun
from tests.experiments.test_training import TINY

RECIPE = replace(TINY, clip=1.0)

if __name__ == "__main__":
    folder, victim, at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    join_torchrun()
    note = training._Run.note

    def note_or_die(self, loss: float, error: float) -> None:
        died = folder.with_suffix(".died")
        if dist.get_rank() == victim and self.step == at and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        note(self, loss, error)

    training._Run.note = note_or_die
    training.train(RECIPE, seed=3, folder=folder, save_every=4)
    leave_torchrun()
