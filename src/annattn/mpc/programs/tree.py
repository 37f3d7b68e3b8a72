"""Sum and Broadcast as programs, over a tree of machines: machine i is child i mod s of machine ⌊i/s⌋."""

from annattn.mpc.model import whole
from annattn.mpc.parts.tree import tree_rounds
from annattn.mpc.programs.expressions import Expression, lift
from annattn.mpc.programs.program import Machine, Program, Send, Turn

__all__ = ["broadcast_program", "sum_program"]


def sum_program(n: int, arity: int = 4, word_bits: int = 8) -> Program:
    """The sum of n words modulo 2^p at machine 0, in ⌈log_s n⌉ rounds.

    In every round each machine passes its word on to its parent and takes the sum of its children's. No machine need
    know whether it still takes part: after t rounds machine i holds the sum of words i·s^t … (i + 1)·s^t - 1.

    >>> from annattn.mpc import run
    >>> run(sum_program(n=5, arity=2), [1, 2, 3, 4, 250]).output
    array([4], dtype=uint64)
    """
    n, arity = whole("n", n), whole("arity", arity, low=2)

    def total(machine: Machine) -> Expression:
        return sum((message[0] for message in machine.messages), lift(0)) % 2**word_bits

    def step(i: int, machine: Machine) -> Turn:
        word = machine["x"] if i == 0 else total(machine)
        me = machine.number
        return Turn(keep={"x": 0}, send=[Send(me // arity, [word], port=me % arity)])

    return Program(
        step,
        output=total,
        rounds=tree_rounds(n, arity),
        machines=n,
        inputs={"x": 2**word_bits},
        word_bits=word_bits,
        ports=arity,
        outputs=1,
    )


def broadcast_program(n: int, arity: int = 4, word_bits: int = 8) -> Program:
    """Machine 0's word on all n machines, in ⌈log_s n⌉ rounds.

    In every round each machine sends its word to its s children. The word of machine i after t rounds is the one that
    machine ⌊i/s^t⌋ had at first, so it does not matter what the others start with.

    >>> from annattn.mpc import run
    >>> run(broadcast_program(n=5, arity=2), [9, 0, 1, 2, 3]).output
    array([9, 9, 9, 9, 9], dtype=uint64)
    """
    n, arity = whole("n", n), whole("arity", arity, low=2)

    def step(i: int, machine: Machine) -> Turn:
        word = machine["x"] if i == 0 else machine.messages[0][0]
        children = [arity * machine.number + child for child in range(min(arity, n))]
        return Turn(keep={"x": 0}, send=[Send(child, [word]) for child in children])

    return Program(
        step,
        output=lambda machine: machine.messages[0][0],
        rounds=tree_rounds(n, arity),
        machines=n,
        inputs={"x": 2**word_bits},
        word_bits=word_bits,
    )
