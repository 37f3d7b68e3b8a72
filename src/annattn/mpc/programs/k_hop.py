"""k-hop induction heads over a small alphabet as a program: machine i plays position i."""

from annattn.mpc.model import whole
from annattn.mpc.programs.expressions import Expression, equal, maximum, pick, select
from annattn.mpc.programs.program import NOWHERE, Machine, Program, Send, Turn

__all__ = ["k_hop_program"]


def k_hop_program(n: int, letters: int = 4, k: int = 1) -> Program:
    """1 + w at σ^k(w, i) for every position i, or 0 for ⊥: 1 + ⌈log2 n⌉ + 2(⌊log2 k⌋ + 1) rounds.

    σ(w, i) is the position after the latest earlier occurrence of letter w_i. First every position hears the letter
    before it. Then the latest place of each letter is spread by a prefix maximum: in round t position i tells position
    i + 2^t. That takes one word per letter, which is why the alphabet must be small. Then k is followed by doubling, as
    in the protocol `KHop`: position i asks σ^(2^t)(i), and is told where that jumps to and what it has found. Jumps are
    one-to-one where they are not ⊥, so no position is asked twice. A place j is written as j, and 0 means ⊥: no jump
    ends at position 0.

    >>> from annattn.mpc import run
    >>> word = ["abc".index(letter) for letter in "aabcbabca"]
    >>> "⊥abc"[run(k_hop_program(9, letters=3, k=2), word).output[8]]
    'a'
    """
    n, letters, k = whole("n", n), whole("letters", letters), whole("k", k)
    scan = (n - 1).bit_length()
    latest = [f"latest {letter}" for letter in range(letters)]

    def places(t: int, machine: Machine) -> list[Expression]:
        """After t rounds of the scan, where the latest occurrence of each letter was, plus 1."""
        if t == 0:
            before, heard = machine.messages[0][0], machine.arrived[0]
            return [select(heard, select(equal(before, c), machine.number, 0), 0) for c in range(letters)]
        return [maximum(machine[name], machine.messages[0][c]) for c, name in enumerate(latest)]

    def answered(machine: Machine, digit: int) -> dict[str, Expression]:
        """Jump and letter after an answer; no answer means ⊥, and its zeros say so."""
        jump, found = machine.messages[0]
        return {"jump": jump, "found": found if digit else machine["found"]}

    def step(i: int, machine: Machine) -> Turn:
        me = machine.number
        if i == 0:
            return Turn(keep={"letter": machine["letter"]}, send=[Send(me + 1, [machine["letter"]])])
        if i <= scan:
            now = places(i - 1, machine)
            keep = dict(zip(latest, now, strict=True)) | {"letter": machine["letter"]}
            return Turn(keep=keep, send=[Send(me + 2 ** (i - 1), now)])
        i -= scan + 1
        if i % 2 == 0:
            if i == 0:
                jump = pick(machine["letter"], places(scan, machine))
                held: dict[str, Expression] = {"jump": jump, "found": machine["letter"] + 1}
            else:
                held = answered(machine, k >> (i // 2 - 1) & 1)
            return Turn(keep=held, send=[Send(select(held["jump"] > 0, held["jump"], NOWHERE), [me])])
        asked = select(machine.arrived[0], machine.messages[0][0], NOWHERE)
        return Turn(keep={"found": machine["found"]}, send=[Send(asked, [machine["jump"], machine["found"]])])

    return Program(
        step,
        output=lambda machine: answered(machine, k >> (k.bit_length() - 1) & 1)["found"],
        rounds=1 + scan + 2 * k.bit_length(),
        machines=n,
        inputs={"letter": letters},
        word_bits=max(n, letters).bit_length(),
    )
