"""Match2 as a program: is there a token that adds up to 0 modulo M with mine?"""

from annattn.mpc.model import whole
from annattn.mpc.programs.expressions import Expression, either, equal, pick, table
from annattn.mpc.programs.program import Machine, Program, Send, Turn

__all__ = ["match2_program"]


def match2_program(n: int, modulus: int = 8) -> Program:
    """1 for every i with some j such that x_i + x_j ≡ 0 modulo M, else 0, for tokens 0 … M, in ⌈log2 n⌉ rounds.

    A machine keeps one bit per residue: does it occur among the tokens it has heard of? In round t it tells the machine
    2^t further on, around a ring, and takes the union. After ⌈log2 n⌉ rounds it has heard of all tokens.

    >>> from annattn.mpc import run
    >>> run(match2_program(4, modulus=7), [0, 1, 2, 5]).output
    array([1, 0, 1, 1], dtype=uint64)
    """
    n, modulus = whole("n", n), whole("modulus", modulus)
    bits = [f"residue {residue}" for residue in range(modulus)]

    def seen(i: int, machine: Machine) -> list[Expression]:
        if i == 0:
            return [equal(machine["x"] % modulus, residue) for residue in range(modulus)]
        return [either(machine[name], machine.messages[0][r]) for r, name in enumerate(bits)]

    def step(i: int, machine: Machine) -> Turn:
        now = seen(i, machine)
        keep = dict(zip(bits, now, strict=True)) | {"x": machine["x"]}
        return Turn(keep=keep, send=[Send((machine.number + 2**i) % n, now)])

    rounds = max(1, (n - 1).bit_length())
    return Program(
        step,
        output=lambda machine: pick(
            table(machine["x"], [-x % modulus for x in range(modulus + 1)]), seen(rounds, machine)
        ),
        rounds=rounds,
        machines=n,
        inputs={"x": modulus + 1},
        word_bits=modulus.bit_length(),
    )
