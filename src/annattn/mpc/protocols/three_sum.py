"""ThreeSum: whether three of the numbers add up to zero, in a constant number of rounds with s of about 5√N words."""

from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from annattn.errors import AnnattnError, InputError
from annattn.mpc.model import Limits, Mail, Numbers, Words, spread
from annattn.mpc.parts.columnsort import can_columnsort, plan_columnsort
from annattn.mpc.parts.stages import Stage, in_order, index_within, join_mail
from annattn.mpc.parts.tree import children_of, tree_rounds
from annattn.mpc.protocols.problem import Problem

__all__ = ["ZERO", "ThreeSum"]

ZERO = 2**61
"""The word for the number 0: a word is a number plus this, so it is never negative. Sums of three fit 63 bits."""


class ThreeSum(Problem):
    """1 if x_i + x_j + x_k = 0 for three different positions of n numbers below 2^61 in size, else 0.

    Sort the numbers and cut them into g blocks of B. A triple of blocks (i, j, k) matters only if 0 lies between its
    smallest and its largest sum. Along a diagonal (i+t, j+t, k+t) the sums of one triple end where those of the next
    begin, and the first triple that matters is enough: take a solution whose numbers have the lowest ranks. The
    number before its lowest one is smaller, so the triple of blocks before that of the solution has only sums below 0.
    So one machine per diagonal is enough, D = g(g+1)/2 in all. Every machine gets the table of the blocks' ends, 2g
    words, and computes from it who needs which block. Then every number spreads over its own tree of relays. A machine
    holds the table and three blocks: 2g + 3B ≤ s, so s ≥ 2√6·√n.

    Rounds: 4^d to sort, 1 + ⌈log P⌉ for the table, ⌈log D⌉ for the blocks and ⌈log D⌉ for the verdict, with logarithms
    to the bases s - 1, s - 2g - 1 and s. This is a constant if s = c√n with c > 2√6.

    >>> from annattn.mpc import run
    >>> problem = ThreeSum(n=4, memory_words=14)
    >>> int(run(problem, problem.encode([5, -2, 9, -3])).output)
    1
    """

    input_width = 1
    bound = "O(1) for s = Ω(√N)"

    def __init__(self, n: int, memory_words: int) -> None:
        n, memory_words = self._require(n, memory_words)
        self.n = self.input_records = n
        self.size = _block(n, memory_words)
        self.blocks = -(-n // self.size)
        self.diagonals = self.blocks * (self.blocks + 1) // 2
        self.plan = plan_columnsort(n, _capacity(memory_words, self.size))
        self.fan = memory_words - 2 * self.blocks - 1
        # A relay holds one word. Each diagonal requests up to three blocks, and every word has at least one relay.
        relays = self.size * (3 * self.diagonals // self.fan + self.blocks)
        machines = max(n, self.diagonals, relays, self.plan.machines, 2 * self.blocks)
        # One relay of the table serves s - 1 machines, and each of the 2g entries has its own: P ≥ 2g⌈P / (s-1)⌉.
        machines = max(machines, -(-2 * self.blocks * (memory_words - 1) // self.fan) + 1)
        self.limits = Limits(machines, memory_words)
        self.table_levels = [machines]
        while self.table_levels[-1] > 1:
            self.table_levels.append(-(-self.table_levels[-1] // (memory_words - 1)))
        self.height = tree_rounds(self.diagonals, self.fan)
        self.stages = (
            Stage(self.plan.rounds, self._sort),
            Stage(1, self._place),
            Stage(len(self.table_levels) - 1, self._spread_table),
            Stage(self.height, self._spread_blocks),
            Stage(tree_rounds(self.diagonals, memory_words), self._verdict),
        )

    @classmethod
    def fits(cls, n: int, memory_words: int, **parameters: Any) -> bool:
        """Whether the table and three blocks fit, and the numbers can be sorted."""
        size = _block(n, memory_words)
        return size > 0 and can_columnsort(n, _capacity(memory_words, size))

    def round_formula(self) -> int:
        """4^d + 1 + ⌈log_(s-1) P⌉ + ⌈log_(s-2g-1) D⌉ + ⌈log_s D⌉, each logarithm at least 1."""
        s, tasks = self.limits.memory_words, self.diagonals
        logs = [(self.limits.machines, s - 1), (tasks, s - 2 * self.blocks - 1), (tasks, s)]
        return 4 ** len(self.plan.columns) + 1 + sum(tree_rounds(*log) for log in logs)

    def encode(self, numbers: ArrayLike) -> Words:
        """Signed numbers as words."""
        given = np.asarray(numbers)
        expected = "integers between -2^61 and 2^61, both excluded"
        if given.dtype.kind not in "iu":
            raise InputError("numbers", given=f"an array of {given.dtype}", expected=expected)
        if given.size and not -ZERO < int(given.min()) <= int(given.max()) < ZERO:
            raise InputError("numbers", given=f"{given.min()} to {given.max()}", expected=expected)
        return (given.astype(np.int64) + ZERO).astype(np.uint64)

    def scatter_part(self, words: Words, first: int, records: int) -> Mail:
        """As many numbers per machine as a column has rows."""
        if int(words.max()) >= 2 * ZERO:
            raise InputError("words", given=int(words.max()), expected="words below 2^62: made by encode")
        return spread(words.reshape(-1, 1), self.plan.rows, first)

    def _sort(self, i: int, mail: Mail) -> Mail:
        return self.plan.step(i, mail, (0,))

    def _place(self, i: int, mail: Mail) -> Mail:
        """Send the number of rank p to machine p, and the ends of blocks also to the first relays of their entries."""
        mail = in_order(mail, (0,))
        rank = mail.dest * self.plan.rows + index_within(mail.dest)
        low, high = rank % self.size == 0, (rank % self.size == self.size - 1) | (rank == self.n - 1)
        parts = [_tagged(0, rank, mail)]
        for side, chosen in ((0, low), (1, high)):
            parts.append(_tagged(1, rank[chosen] // self.size * 2 + side, mail.take(chosen)))
        return join_mail(*parts)

    def _spread_table(self, i: int, mail: Mail) -> Mail:
        """Send each entry from relay to relay, s - 1 per relay, in the end to all machines; numbers stay in place."""
        if i == 0:
            own, entry = (
                Mail(m.dest, m.src, m.words[:, 1:]) for m in (mail.take(mail.words[:, 0] == k) for k in (0, 1))
            )
        else:
            own, entry = self._own(mail)
        level = len(self.table_levels) - 1 - i
        here, below = self.table_levels[level], self.table_levels[level - 1]
        which, node = np.divmod(entry.dest, here)
        record, child = children_of(node, np.full(len(node), below), self.limits.memory_words - 1)
        dest = child if level == 1 else which[record] * below + child
        return join_mail(Mail(own.dest, own.dest, own.words), Mail(dest, entry.dest[record], entry.words[record]))

    def _own(self, mail: Mail) -> tuple[Mail, Mail]:
        """A machine's own number, which is the first thing it sent itself, and the rest."""
        first = np.zeros(len(mail), bool)
        selfish = np.flatnonzero((mail.src == mail.dest) & (mail.dest < self.n))
        first[selfish[index_within(mail.dest[selfish]) == 0]] = True
        return mail.take(first), mail.take(~first)

    def _table(self, mail: Mail) -> tuple[Mail, Mail]:
        """A machine's table, which is the first 2g words it sent itself, and the rest."""
        table = np.zeros(len(mail), bool)
        selfish = np.flatnonzero(mail.src == mail.dest)
        table[selfish[index_within(mail.dest[selfish]) < 2 * self.blocks]] = True
        return mail.take(table), mail.take(~table)

    def _requests(self, table: Mail) -> "_Requests":
        """Who needs which block: a function of the table alone, so all machines come to the same result."""
        ends = table.words.reshape(-1, self.blocks, 2)
        if (ends != ends[0]).any():
            raise AnnattnError("ThreeSum: machines hold different tables")
        return _Requests.of(ends[0].astype(np.int64) - ZERO, self.size, self.n, self.fan, self.height)

    def _spread_blocks(self, i: int, mail: Mail) -> Mail:
        held, table = self._own(mail) if i == 0 else self._table(mail)[::-1]
        keep = Mail(table.dest, table.dest, table.words)
        if len(table) == 0:
            return keep
        height, requests = self.height - i, self._requests(table)
        relays, start = requests.relays, requests.start
        block = np.searchsorted(start[height], held.dest, side="right") - 1
        place, node = np.divmod(held.dest - start[height][block], np.maximum(relays[height][block], 1))
        record, child = children_of(node, relays[height - 1][block], self.fan)
        of = block[record]
        if height == 1:
            dest = requests.task[requests.first[of] + child]
        else:
            dest = start[height - 1][of] + place[record] * relays[height - 1][of] + child
        return join_mail(keep, Mail(dest, held.dest[record], held.words[record]))

    def _verdict(self, i: int, mail: Mail) -> Mail:
        if i == 0:
            _, numbers = self._table(mail)
            found = [m for m, values in _groups(numbers) if _has_triple(values.astype(np.int64) - ZERO)]
            machine = np.array(found, np.int64)
        else:
            machine = np.unique(mail.dest)
        return Mail(machine // self.limits.memory_words, machine, np.ones((len(machine), 1), np.uint64))

    def gather(self, mail: Mail) -> Words:
        """Whether any machine found a triple."""
        return np.array(len(mail) > 0, np.uint64)

    def sample(self, rng: np.random.Generator) -> Words:
        """Numbers among which a triple is about as likely as not."""
        reach = max(4, self.n**3 // 6)
        return self.encode(rng.integers(-reach, reach + 1, self.n))

    def oracle(self, words: Words) -> int:
        """All pairs, and a search for the third number."""
        numbers = [int(word) - ZERO for word in words]
        latest = {number: place for place, number in enumerate(numbers)}
        return int(
            any(
                latest.get(-numbers[i] - numbers[j], -1) > j
                for i in range(len(numbers))
                for j in range(i + 1, len(numbers))
            )
        )


class _Requests(NamedTuple):
    """The trees by which blocks reach their tasks: per height, the relays per number of each block, and the first."""

    relays: list[Numbers]
    start: list[Numbers]
    first: Numbers
    task: Numbers

    @classmethod
    def of(cls, ends: Numbers, size: int, n: int, fan: int, height: int) -> "_Requests":
        blocks = len(ends)
        block, task = _tasks(ends)
        order = np.lexsort([task, block])
        wanted = np.bincount(block, minlength=blocks)
        relays = [wanted]
        for level in range(1, height + 1):
            relays.append(-(-wanted // fan**level) if level < height else np.ones(blocks, np.int64))
        held = np.minimum(size, n - np.arange(blocks) * size)
        start = [np.cumsum(held * count) - held * count for count in relays]
        return cls(relays, start, np.cumsum(wanted) - wanted, task[order])


def _tasks(ends: Numbers) -> tuple[Numbers, Numbers]:
    """Which blocks are needed, and by which diagonals: those whose first triple that reaches 0 contains the block."""
    blocks = len(ends)
    near, far = np.triu_indices(blocks)

    def total(t: Numbers, side: int) -> Numbers:
        return ends[t, side] + ends[t + near, side] + ends[t + far, side]

    # Sums grow along a diagonal, so the first triple that reaches 0 is found by halving.
    first = _first_true(blocks - far, lambda t: total(t, 1) >= 0)
    inside = np.flatnonzero(first < blocks - far)
    inside = inside[total(np.where(first < blocks - far, first, 0), 0)[inside] <= 0]
    pairs = [(first[inside] + offset[inside], inside) for offset in (np.zeros_like(near), near, far)]
    needs = np.unique(np.concatenate([np.stack(pair, axis=1) for pair in pairs]), axis=0)
    return needs[:, 0], needs[:, 1]


def _first_true(length: Numbers, test: Any) -> Numbers:
    """For each diagonal the first t in 0 … length-1 at which the test is true, or length; once true it stays true."""
    low, high = np.zeros_like(length), length.copy()
    while (low < high).any():
        middle = (low + high) // 2
        active = low < high
        holds = test(np.where(active, middle, 0))
        high = np.where(active & holds, middle, high)
        low = np.where(active & ~holds, middle + 1, low)
    return low


def _groups(mail: Mail) -> list[tuple[int, Words]]:
    machines, first = np.unique(mail.dest, return_index=True)
    return list(zip(machines.tolist(), np.split(mail.words[:, 0], first[1:]), strict=True)) if len(mail) else []


def _has_triple(values: Numbers) -> bool:
    """Whether three different places of sorted values add up to zero."""
    i, j = np.triu_indices(len(values), k=1)
    need = -values[i] - values[j]
    latest = np.searchsorted(values, need, side="right") - 1
    return bool(((latest > j) & (values[latest] == need)).any())


def _tagged(kind: int, dest: Numbers, mail: Mail) -> Mail:
    return Mail(dest, mail.dest, np.column_stack([np.full(len(mail), kind, np.uint64), mail.words]))


def _block(n: int, memory_words: int) -> int:
    """The largest block with 2⌈n/B⌉ + 3B ≤ s, or 0; larger blocks need fewer machines."""
    # 3B + 2n/B ≤ s up to rounding, so B is next to the larger root of 3B² - sB + 2n.
    root = isqrt(max(0, memory_words**2 - 24 * n))
    for size in range(min(n, (memory_words + root) // 6 + 2), max(0, (memory_words + root) // 6 - 4), -1):
        if 2 * -(-n // size) + 3 * size <= memory_words:
            return size
    return next((b for b in range(min(n, memory_words // 3), 0, -1) if 2 * -(-n // b) + 3 * b <= memory_words), 0)


def _capacity(memory_words: int, size: int) -> int:
    """Numbers per machine when sorting: it sends two words for each, and for both ends of every block it touches."""
    return max(0, (memory_words // 2 - 4) * size // (size + 2))
