"""The contract of an engine."""

from abc import ABC, abstractmethod

from annattn.mpc.model import Progress, Protocol, Result, Words

__all__ = ["Engine"]


class Engine(ABC):
    """Runs all rounds of a protocol under its limits; an engine's options are the arguments of its constructor.

    In every round an engine

    1. calls the protocol's `step` on delivered mail: ordered by receiver and then sender, with one sender's records to
       one receiver in the order they were sent. It may make one call for all machines or one per group of machines,
       and it may call again for a group whose worker was lost;
    2. checks every limit, and raises the matching `LimitError` before anything is delivered;
    3. records what every machine sent and received, tells `progress`, and delivers.

    Output, trace and errors are the same, bit for bit, on every engine. The functions in `annattn.mpc.delivery` check,
    record and deliver, so that an engine only decides where the steps run.
    """

    reads_parts = False
    """Whether `run` also takes an input in parts, `PartFiles` or a dataset of Ray; otherwise it gets an array."""

    @abstractmethod
    def run(self, protocol: Protocol, words: Words, progress: Progress) -> Result:
        """Deliver the input, run every round, and gather the output.

        `words` has the shape that the protocol asks for, and belongs to the caller: do not write to it. Call
        `progress(load, rounds)` once after every round.
        """
