"""Programs of the expression language: they run like any protocol, and their rules are checked before they run."""

from typing import Any

import numpy as np
import pytest

from annattn.errors import CompileError, InboxError, InputError, PortError
from annattn.mpc import check_sharding, run
from annattn.mpc.programs import (
    PROGRAMS,
    Program,
    Send,
    Turn,
    broadcast_program,
    either,
    k_hop_program,
    match2_program,
    select,
    sum_program,
    table,
)
from annattn.mpc.programs.expressions import Leaf
from annattn.mpc.protocols import Sum
from annattn.mpc.protocols.induction_head import NOTHING, hop_letters


def step(i, machine):
    return Turn(keep={"x": machine["x"]}, send=[Send(machine.number, [machine["x"]])])


def program(step=step, **options):
    options = {"rounds": 1, "machines": 4, "inputs": {"x": 8}, "word_bits": 3, "output": lambda machine: 0} | options
    return Program(step, **options)


@pytest.mark.parametrize("arity", [2, 3, 10])
@pytest.mark.parametrize("n", [1, 2, 9, 30])
def test_the_sum_is_the_protocols_sum(n, arity):
    made, words = sum_program(n, arity, word_bits=5), np.random.default_rng(n).integers(0, 32, n)
    result = run(made, words)
    assert result.output.tolist() == [sum(words.tolist()) % 32]
    assert result.trace.rounds == Sum(n, arity).rounds


@pytest.mark.parametrize("arity", [2, 3, 10])
@pytest.mark.parametrize("n", [1, 2, 9, 30])
def test_everybody_gets_the_first_word(n, arity):
    words = np.random.default_rng(n).integers(0, 256, n)
    assert run(broadcast_program(n, arity), words).output.tolist() == [words[0]] * n


@pytest.mark.parametrize("k", [1, 2, 3, 6, 11])
@pytest.mark.parametrize(("n", "letters"), [(1, 1), (2, 1), (9, 2), (30, 4)])
def test_k_hop_follows_one_hop_after_the_other(n, letters, k):
    made = k_hop_program(n, letters, k)
    for seed in range(5):
        word = np.random.default_rng(seed).integers(0, letters, n, dtype=np.uint64)
        expected = hop_letters(word, k)
        found = run(made, word).output
        assert found.tolist() == [0 if letter == NOTHING else int(letter) + 1 for letter in expected]
    assert made.rounds == 1 + int(np.ceil(np.log2(n))) + 2 * (int(np.log2(k)) + 1)


@pytest.mark.parametrize("modulus", [1, 2, 7])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 21])
def test_match2_tries_every_pair(n, modulus):
    for seed in range(5):
        x = np.random.default_rng(seed).integers(0, modulus + 1, n)
        expected = [int(any((a + b) % modulus == 0 for b in x)) for a in x]
        assert run(match2_program(n, modulus), x).output.tolist() == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_its_machines_look_only_at_their_own_mail(name):
    made = PROGRAMS[name](6)
    check_sharding(made, made.sample(np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("ports", "error", "why"),
    [(1, InboxError, "received 6 words"), (2, PortError, "received 2 messages at one port, but a port takes 1")],
)
def test_two_messages_at_one_port_are_an_error_that_names_the_machine(ports, error, why):
    crowd = program(
        lambda i, machine: Turn({"x": 0}, [Send(select(machine["x"] > 0, 2, machine.number), [1])]), ports=ports
    )
    assert run(crowd, [0, 0, 1, 0]).output.tolist() == [0] * 4
    with pytest.raises(error, match=f"round 0, machine 2: {why}"):
        run(crowd, [0, 1, 0, 0])


def test_what_a_program_may_not_do_is_refused_before_it_runs():
    def turn(keep=0, to: Any = 0, word=0, port=0):
        return lambda i, machine: Turn({"x": keep}, [Send(to, [word], port)])

    with pytest.raises(CompileError, match=r"port of message 0 of round 0: got values from 1 to 1, expected 0 to 0"):
        program(turn(port=1))
    with pytest.raises(CompileError, match=r"word 0 of message 0 of round 0: got values from 8 to 8"):
        program(turn(word=8))
    with pytest.raises(CompileError, match=r"x kept in round 0: got values from -1 to -1"):
        program(turn(keep=-1))
    with pytest.raises(CompileError, match="receiver of message 0 of round 0: got 'me'"):
        program(turn(to="me"))
    with pytest.raises(CompileError, match="a Turn that keeps a word"):
        program(lambda i, machine: Turn({}))
    with pytest.raises(CompileError, match="got no words"):
        program(lambda i, machine: Turn({"x": 0}, [Send(0, [])]))
    with pytest.raises(InputError, match="output: got 1 values, as low as -7"):
        program(output=lambda machine: -machine["x"])
    with pytest.raises(InputError, match="inputs: got none"):
        program(inputs={})
    with pytest.raises(InputError, match=r"input x: got 8, expected 0 to 7"):
        run(program(), [8, 0, 0, 0])


def test_what_an_expression_may_not_do_is_refused():
    x = Leaf("x", 0, 7)
    with pytest.raises(InputError, match="use select"):
        bool(x < 3)
    with pytest.raises(InputError, match="factor: got an expression"):
        _ = x * x  # type: ignore[operator]
    with pytest.raises(InputError, match="dividend"):
        _ = (x - 1) % 2
    with pytest.raises(InputError, match="divisor: got 0"):
        _ = x // 0
    with pytest.raises(InputError, match="index: got values from 0 to 7, expected 0 to 2"):
        table(x, [1, 2, 3])
    with pytest.raises(InputError, match="a: got values from 0 to 7, expected 0 or 1"):
        either(x, 1)
    with pytest.raises(InputError, match=r"at most 2\^52"):
        _ = x * 2**52
    with pytest.raises(InputError, match="words of few bits"):
        _ = (x * 2**20) % 2
    with pytest.raises(TypeError):
        _ = x + 0.5  # type: ignore[operator]
