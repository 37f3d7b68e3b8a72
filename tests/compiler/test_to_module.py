"""Programs as weights: networks equal their expressions, modules their protocols, and files need no compiler."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annattn.compiler import to_module, to_transformer
from annattn.compiler.relu import relu_network
from annattn.errors import CollisionError, CompileError, InputError
from annattn.mpc import Limits, PerMachine, run
from annattn.mpc.programs import (
    NOWHERE,
    PROGRAMS,
    Program,
    Send,
    Turn,
    both,
    either,
    equal,
    k_hop_program,
    match2_program,
    maximum,
    minimum,
    negation,
    pick,
    select,
    sum_program,
    table,
)
from annattn.mpc.programs.expressions import Leaf, Linear, Positive, Select, Table, evaluate
from annattn.nn import ExactTransformer

SMALL = {
    "Sum": [(1,), (9, 3, 5), (14, 2, 8)],
    "Broadcast": [(1,), (9, 3, 5), (14, 2, 8)],
    "KHop": [(1, 1), (9, 2, 3), (14, 4, 6)],
    "Match2": [(1, 1), (9, 5), (14, 8)],
}
CASES = [pytest.param(name, sizes, id=f"{name}{sizes}") for name in SMALL for sizes in SMALL[name]]


def literally(one, leaves: dict) -> int:
    """An expression read aloud, in Python's own numbers."""
    if isinstance(one, Leaf):
        return leaves[one.name]
    if isinstance(one, Linear):
        return one.constant + sum(factor * literally(term, leaves) for factor, term in one.terms)
    if isinstance(one, Positive):
        return int(literally(one.of, leaves) > 0)
    if isinstance(one, Select):
        return literally(one.yes if literally(one.condition, leaves) else one.no, leaves)
    assert isinstance(one, Table)
    return one.entries[literally(one.index, leaves)]


KINDS = ["add", "sub", "times", "less", "select", "table", "equal", "mod", "div", "max", "min", "both", "either", "not",
         "pick"]  # fmt: skip


@st.composite
def expressions(draw, known: list, depth: int = 3, largest: int = 60):
    """A random expression of the known ones, not below -60 or above 60."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(known)) if draw(st.booleans()) else known[0] * 0 + draw(st.integers(-5, 9))

    def inner():
        return draw(expressions(known, depth - 1))

    def small():
        """Something from 0 to 12."""
        one = inner()
        return minimum(maximum(one, 0), 12)

    def truth():
        return inner() < inner()

    kind = draw(st.sampled_from(KINDS))
    made = {
        "add": lambda: inner() + inner(),
        "sub": lambda: inner() - inner(),
        "times": lambda: draw(st.integers(-4, 4)) * inner(),
        "less": lambda: draw(st.sampled_from([lambda a, b: a < b, lambda a, b: a >= b, lambda a, b: a <= b]))(
            inner(), inner()
        ),
        "select": lambda: select(truth(), inner(), inner()),
        "table": lambda: table(small(), draw(st.lists(st.integers(-30, 30), min_size=13, max_size=13))),
        "equal": lambda: equal(inner(), inner()),
        "mod": lambda: small() % draw(st.integers(1, 5)),
        "div": lambda: small() // draw(st.integers(1, 5)),
        "max": lambda: maximum(inner(), inner()),
        "min": lambda: minimum(inner(), inner()),
        "both": lambda: both(truth(), truth()),
        "either": lambda: either(truth(), truth()),
        "not": lambda: negation(truth()),
        "pick": lambda: pick(small(), [inner(), inner()]),
    }[kind]()
    return minimum(maximum(made, -largest), largest)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_network_is_its_expressions_on_every_input(data):
    a, b = Leaf("a", 0, 6), Leaf("b", 2, 5)
    made = [data.draw(expressions([a, b])) for _ in range(2)]
    grid = np.array([[x, y] for x in range(7) for y in range(2, 6)])
    network = relu_network([a, b], made)
    found = network(grid)
    values = evaluate(made, {"a": grid[:, 0], "b": grid[:, 1]})
    for row, (x, y) in enumerate(grid.tolist()):
        for column, one in enumerate(made):
            expected = literally(one, {"a": x, "b": y})
            assert found[row, column] == values[column][row] == expected
            assert one.low <= expected <= one.high
    # No sum of products, however few of its terms are taken, is larger than the magnitude says.
    rows = grid
    for weight, bias in network.stages:
        assert (np.abs(rows) @ np.abs(weight).T + np.abs(bias)).max() <= network.magnitude
        rows = np.maximum(rows @ weight.T + bias, 0)


@pytest.mark.parametrize(
    ("make", "units"),
    [(lambda x: x < 5, 2), (lambda x: select(x < 5, x, 3), 4), (lambda x: table(x, range(0, 32, 2)), 0),
     (lambda x: x // 4, 6), (lambda x: x % 4, 6), (lambda x: table(x, [3, 1, 4, 1, 5, 2, 6, 0] * 2), 14)],
)  # fmt: skip
def test_units_are_as_few_as_the_page_says(make, units):
    network = relu_network([Leaf("x", 0, 15)], [make(Leaf("x", 0, 15))])
    widths = [len(bias) for _, bias in network.stages[:-1]]
    x = np.arange(16)[:, None]
    assert np.array_equal(network(x)[:, 0], evaluate([make(Leaf("x", 0, 15))], {"x": x[:, 0]})[0])
    # Numbers that are needed later are carried, one unit for each and layer.
    assert units <= sum(widths) <= units + 2 * len(widths)


@st.composite
def programs(draw) -> Program:
    """Random rounds: words kept, messages to a random permutation of the machines or to nobody, as the data says."""
    machines, bits, count = draw(st.integers(1, 6)), draw(st.integers(3, 6)), draw(st.integers(1, 2))
    plans = [draw(st.lists(st.permutations(range(machines)), max_size=2)) for _ in range(draw(st.integers(0, 3)))]

    def word(known):
        return minimum(maximum(draw(expressions(known, depth=2)), 0), 2**bits - 1)

    def step(i, machine):
        known = [*machine.words.values(), machine.number, *(w for m in machine.messages for w in m), *machine.arrived]
        keep = {f"r{j}": word(known) for j in range(draw(st.integers(1, 2)))}
        sends = []
        for port, receivers in enumerate(plans[i]):
            asleep = word(known) > 2 if draw(st.booleans()) else 0
            to = select(asleep, NOWHERE, table(machine.number, receivers))
            sends.append(Send(to, [word(known) for _ in range(draw(st.integers(1, 2)))], port))
        return Turn(keep, sends)

    def output(machine):
        known = [*machine.words.values(), machine.number, *(w for m in machine.messages for w in m)]
        return [word(known) for _ in range(2)]

    inputs = {f"x{i}": draw(st.integers(1, 2**bits)) for i in range(count)}
    return Program(
        step, output=output, rounds=len(plans), machines=machines, inputs=inputs, word_bits=bits, ports=2,
        outputs=draw(st.integers(1, machines)),
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_a_module_computes_what_the_random_program_computes_on_machines(program, seed):
    model = to_module(program)
    for _ in range(3):
        words = program.sample(np.random.default_rng(seed))
        expected = run(program, words).output
        assert np.array_equal(model.run(words), expected)
    assert all(torch.equal(parameter, parameter.round()) for parameter in model.parameters())


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_both_compilers_agree_on_random_programs(program, seed):
    words = program.sample(np.random.default_rng(seed))
    assert np.array_equal(to_module(program).run(words), to_transformer(program).run(words))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_every_listed_program_is_its_module_bit_for_bit(name, sizes, dtype):
    program = PROGRAMS[name](*sizes)
    model = to_module(program, dtype)
    assert len(model.layers) == program.rounds
    batch = [program.sample(np.random.default_rng(seed)) for seed in range(6)]
    outputs = model(torch.from_numpy(np.stack(batch).astype(np.int64)))
    assert outputs.dtype == getattr(torch, dtype)
    for words, output in zip(batch, outputs, strict=True):
        assert np.array_equal(output[:, 0].numpy(), run(program, words).output)
    assert all(torch.equal(parameter, parameter.round()) for parameter in model.parameters())


def test_every_program_is_tried():
    assert set(SMALL) == set(PROGRAMS)


PLAIN = """
import json, sys
import torch
from safetensors import safe_open

def network(x, weights, name, widths):
    for i in range(len(widths) - 1):
        x = x @ weights[f"{name}.{2 * i}.weight"].T + weights[f"{name}.{2 * i}.bias"]
        x = x.relu() if i < len(widths) - 2 else x
    return x

def exact_match(query, key, value):
    equal = (query[:, None] == key[None, :]).to(value)
    return equal @ value / equal.sum(1, keepdim=True).clamp(min=1)

def run(path, words):
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
        weights = {name: file.get_tensor(name) for name in file.keys()}
    x = torch.cat([weights["number"], torch.tensor(words).to(weights["number"])], 1)
    for number, layer in enumerate(config["layers"]):
        h, p, w = layer["messages"], layer["ports"], layer["value_width"]
        made = network(x, weights, f"layers.{number}.local", layer["widths"])
        kept, query, key, value = made.split([layer["kept"], p, h, h * w], 1)
        heads = [[exact_match(query[:, j], key[:, i], value[:, i * w : i * w + w]) for i in range(h)] for j in range(p)]
        x = torch.cat([kept, *(sum(messages) for messages in heads)], 1)
    return network(x, weights, "output", config["output_widths"])[: config["output_tokens"]].long().tolist()

outputs = [run(path, words) for path, words in json.loads(sys.argv[1])]
print(json.dumps([outputs, "annattn" in sys.modules]))
"""


@pytest.mark.slow
def test_saved_files_run_in_a_script_that_knows_only_torch(tmp_path):
    made = [PROGRAMS[name](12) for name in PROGRAMS]
    paths = [to_module(program).save(tmp_path / str(i)) for i, program in enumerate(made)]
    inputs = [program.sample(np.random.default_rng(5)) for program in made]
    cases = json.dumps([(str(path), words.tolist()) for path, words in zip(paths, inputs, strict=True)])
    ran = subprocess.run([sys.executable, "-c", PLAIN, cases], capture_output=True, text=True, check=True)
    outputs, imported = json.loads(ran.stdout)
    assert not imported
    for program, path, words, output in zip(made, paths, inputs, outputs, strict=True):
        expected = run(program, words).output
        assert np.array_equal(np.array(output)[:, 0], expected)
        assert np.array_equal(ExactTransformer.load(path).run(words), expected)


def test_float32_is_chosen_only_where_it_is_exact():
    small, large = sum_program(4, 4, word_bits=8), sum_program(4, 4, word_bits=12)
    assert to_module(small).config.dtype == "float32"
    model = to_module(large)
    assert model.config.dtype == "float64"
    words = np.full(4, 4095)
    assert model.run(words).tolist() == run(large, words).output.tolist() == [4 * 4095 % 4096]
    with pytest.raises(CompileError, match=r"float32 with sums up to \d+, expected float64"):
        to_module(large, "float32")


def test_numbers_as_large_as_the_dtype_holds_stay_exact():
    # The sum of both inputs is just below 2^24, and 2^24 + 1 is the first whole number that float32 lacks.
    half = 2**22
    program = Program(
        lambda i, machine: Turn({"s": machine["a"] + machine["b"]}, [Send(machine.number, [machine["a"]])]),
        output=lambda machine: machine["s"] + machine.messages[0][0],
        rounds=1, machines=2, inputs={"a": half, "b": half}, word_bits=24,
    )  # fmt: skip
    words = [[half - 1, half - 2], [1, half - 1]]
    model = to_module(program)
    assert model.config.dtype == "float32"
    assert model.run(words).tolist() == run(program, words).output.tolist() == [3 * half - 4, half + 1]


def test_two_messages_at_one_port_are_an_error_in_the_module_too():
    crowd = Program(
        lambda i, machine: Turn({"x": 0}, [Send(select(machine["x"] > 0, 2, machine.number), [1])]),
        output=lambda machine: machine.messages[0][0],
        rounds=1, machines=4, inputs={"x": 2}, word_bits=1,
    )  # fmt: skip
    model = to_module(crowd)
    assert model.run([0, 0, 1, 0]).tolist() == [1, 1, 1, 1]
    with pytest.raises(CollisionError, match="layer 0, head 0, token 2: 2 messages for port 0"):
        model.run([0, 1, 0, 0])


def test_words_that_a_shorter_message_lacks_are_zero_and_a_silent_round_has_no_heads():
    def step(i, machine):
        me, x = machine.number, machine["x"]
        sends = [Send(me, [x, x]), Send(3 - me, [x], port=1)] if i else []
        return Turn({"x": x}, sends)

    program = Program(
        step,
        output=lambda machine: [word for message in machine.messages for word in message],
        rounds=2, machines=4, inputs={"x": 8}, word_bits=3, ports=2,
    )  # fmt: skip
    model = to_module(program)
    assert [layer.messages * layer.ports for layer in model.config.layers] == [0, 4]
    assert [layer.ports for layer in model.config.layers] == [0, 2]
    expected = [[1, 1, 4, 0], [2, 2, 3, 0], [3, 3, 2, 0], [4, 4, 1, 0]]
    assert model.run([1, 2, 3, 4]).tolist() == run(program, [1, 2, 3, 4]).output.tolist() == expected


def test_what_cannot_become_weights_is_refused():
    plain = PerMachine(lambda r, m, inbox: [], rounds=1, limits=Limits(2, 2))
    with pytest.raises(InputError, match=r"program: got PerMachine.*to_transformer"):
        to_module(plain)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"words: got shape \(3, 1\), expected \(\.\.\., 4, 1\)"):
        to_module(match2_program(4))(torch.zeros(3, 1))


def test_files_that_are_no_such_weights_are_named(tmp_path):
    path = to_module(sum_program(4)).save(tmp_path / "sum")
    with pytest.raises(InputError, match=r"missing\.safetensors, expected a file that exists"):
        ExactTransformer.load(tmp_path / "missing")
    whole = path.read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="a whole safetensors file"):
        ExactTransformer.load(path)
    Path(path).write_bytes(whole.replace(b"annattn exact transformer 1", b"annattn exact transformer 7"))
    with pytest.raises(InputError, match="format of"):
        ExactTransformer.load(path)
    Path(path).write_bytes(whole.replace(b'\\"tokens\\": 4', b'\\"tokens\\": 5'))
    with pytest.raises(InputError, match=r"number of .*\(4, 1\), expected torch.float32 \(5, 1\)"):
        ExactTransformer.load(path)


def test_more_hops_cost_layers_not_width():
    sizes = {k: to_module(k_hop_program(16, 4, k)) for k in (1, 2, 4, 8)}
    assert [len(model.layers) for model in sizes.values()] == [7, 9, 11, 13]
    assert len({max(max(layer.widths) for layer in model.config.layers) for model in sizes.values()}) == 1


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b'"tokens\\": 4', b'"tokens\\": 2000000000', "number of"),
        (b'"tokens\\": 4', b'"tokens\\": 99999999999', "tokens: got 99999999999"),
        (b'"inputs\\": 1', b'"inputs\\": 2', "widths of a network: got"),
        (b'"kept\\": ', b'"kept\\": 1', "widths of a network: got"),
        (b'"layers\\": [{', b'"layers\\": [1, {', "those of its config"),
    ],
)
def test_sizes_of_a_tampered_file_are_judged_before_anything_is_made(tmp_path, before, after, said):
    path = to_module(sum_program(4)).save(tmp_path / "sum")
    whole = path.read_bytes()
    changed = whole.replace(before, after, 1)
    assert changed != whole
    longer = len(changed) - len(whole)
    header = int.from_bytes(changed[:8], "little") + longer
    path.write_bytes(header.to_bytes(8, "little") + changed[8:])
    with pytest.raises(InputError, match=said):
        ExactTransformer.load(path)
