"""From a program to weights: a torch module that computes what the protocol computes, bit for bit."""

from typing import Literal

import numpy as np
import torch
from torch import nn

from annattn.checks import require_instance
from annattn.compiler.relu import Network, relu_network
from annattn.errors import CompileError
from annattn.mpc.programs.expressions import Expression, Leaf, lift
from annattn.mpc.programs.program import Machine, Program
from annattn.nn.exact import ExactConfig, ExactLayerConfig, ExactTransformer

__all__ = ["to_module"]

EXACT = {"float32": 2**24, "float64": 2**53}
"""Up to this size a dtype holds every whole number."""


def to_module(program: Program, dtype: Literal["float32", "float64"] | None = None) -> ExactTransformer:
    """The program as a transformer of R layers with whole weights; float32 if that is exact, else float64.

    Token i plays machine i and starts with the machine's number and its input. A round is a layer: the machine's step
    is a ReLU network, and a message goes from the token that sends it to the port that asks for it by exact match.

    >>> from annattn.mpc.programs import match2_program
    >>> model = to_module(match2_program(4, modulus=7))
    >>> model.run([0, 1, 2, 5])
    array([1, 0, 1, 1], dtype=uint64)
    >>> print(model)
    2 layers, 1 heads, queries and keys 1 wide, values 8 wide; ReLU networks up to 3 deep and 33 wide;
    2,763 parameters, 344 of them not 0, float32
    """
    hint = "any other protocol becomes a transformer of functions by to_transformer"
    require_instance("program", program, Program, "an annattn.mpc.programs.Program", hint=hint)
    networks: list[Network] = []
    layers: list[ExactLayerConfig] = []
    for turn in program.turns:
        me, ports = program.number, program.ports if turn.sends else 0
        queries = [ports * me + port for port in range(ports)]
        keys = [ports * to + port for to, port, _ in turn.sends]
        values = [[lift(1), *words, *[lift(0)] * (turn.width - len(words))] for _, _, words in turn.sends]
        made = [me, *turn.keep.values(), *queries, *keys, *(number for value in values for number in value)]
        networks.append(relu_network(_features(turn.machine), made))
        layers.append(
            ExactLayerConfig(
                messages=len(turn.sends),
                ports=ports,
                value_width=turn.width + 1 if turn.sends else 0,
                kept=1 + len(turn.keep),
                widths=_widths(networks[-1]),
            )
        )
    networks.append(relu_network(_features(program.final), program.output))
    config = ExactConfig(
        tokens=program.limits.machines,
        inputs=len(program.inputs),
        outputs=len(program.output),
        output_tokens=program.outputs,
        layers=tuple(layers),
        output_widths=_widths(networks[-1]),
        dtype=_dtype(max(network.magnitude for network in networks), dtype),
    )
    model = ExactTransformer(config)
    for network, target in zip(networks, [*model.layers, model.output], strict=True):
        _fill(target, network)
    return model


def _features(machine: Machine) -> list[Leaf]:
    """What a token holds, in the order of its row: its number, its words, and for every port its mark and its words."""
    ports = [[mark, *words] for mark, words in zip(machine.arrived, machine.messages, strict=True)]
    return [_leaf(one) for one in [machine.number, *machine.words.values(), *(one for port in ports for one in port)]]


def _leaf(one: Expression) -> Leaf:
    assert isinstance(one, Leaf)
    return one


def _widths(network: Network) -> tuple[int, ...]:
    return (network.stages[0][0].shape[1], *(len(bias) for _, bias in network.stages))


def _dtype(magnitude: int, asked: str | None) -> str:
    fits = [name for name, largest in EXACT.items() if magnitude <= largest]
    if not fits or (asked is not None and asked not in fits):
        expected = " or ".join(fits) or "numbers below 2^53"
        given = f"{asked or 'a program'} with sums up to {magnitude}"
        raise CompileError("dtype", given=given, expected=expected, hint="use fewer bits per word")
    return asked or fits[0]


def _fill(target: nn.Module, network: Network) -> None:
    linears = [part for part in target.modules() if isinstance(part, nn.Linear)]
    for linear, (weight, bias) in zip(linears, network.stages, strict=True):
        linear.weight.data.copy_(torch.from_numpy(weight.astype(np.float64)))
        linear.bias.data.copy_(torch.from_numpy(bias.astype(np.float64)))
