"""The engine in this process: one step for all machines and one stable sort per round."""

from pathlib import Path

import numpy as np

from annattn.mpc.delivery import deliver_input, finish_round, have_mail, step
from annattn.mpc.engines.engine import Engine
from annattn.mpc.model import Progress, Protocol, Result, Words
from annattn.mpc.part_files import PartFiles, new_folder, write_part
from annattn.mpc.trace import RoundLoad, Trace

__all__ = ["LocalEngine"]


class LocalEngine(Engine):
    """Runs all machines of a round in one call of the protocol's step; `output` is a folder to write the output to."""

    def __init__(self, output: str | Path | None = None) -> None:
        self.output = output

    def run(self, protocol: Protocol, words: Words, progress: Progress) -> Result:
        """Run one round after the other."""
        limits = protocol.limits
        mail = deliver_input(protocol, words)
        loads: list[RoundLoad] = []
        for round_ in range(protocol.rounds):
            senders = have_mail(mail, limits.machines)
            sent = [step(protocol, round_, mail)]
            # Nobody needs the old mail any more; finish_round empties the list, so the new mail is freed early too.
            del mail
            mail, load = finish_round(round_, sent, senders, limits)
            loads.append(load)
            progress(load, protocol.rounds)
        output = protocol.gather(mail)
        if self.output is not None:
            with new_folder(self.output) as folder:
                write_part(folder, 0, np.atleast_1d(output))
            output = PartFiles.open(self.output)
        return Result(output, Trace(limits, tuple(loads)))
