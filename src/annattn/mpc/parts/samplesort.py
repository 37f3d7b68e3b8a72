"""Sorting in O(1/ε) rounds by splitters from samples: what columnsort does not do when s = N^ε and ε is small.

Records move through a butterfly of p = a^t machines. A machine's number has t digits in base a, first digit highest.
First the records are shuffled by a permutation drawn from the seed. Then digit after digit of a record's machine is
replaced by the number of its bucket: at level i the records of one bucket are on the machines that share i digits, all
of which know the a - 1 splitters that cut this bucket into a smaller ones. After t levels machine j holds bucket j.

The splitters of all levels come from waves of samples that run ahead. Wave i is a sample on c·a^i machines of its own.
It moves through the first i levels just as the records do. Then c machines hold a sample of one bucket of level i. Each
of them sorts its part and sends some records, evenly spaced, to the first of them, which picks the splitters and tells
the others. These tell a machines each of wave i + 1, which tell a machines each of wave i + 2, and so on to all
records. Wave j passes level i at time 3i + j + 2, just when the splitters of that level come by, so 4t rounds are
enough for all levels.

Buckets differ in size. So their sizes are added up in a tree, and every record goes to the machine of its rank.

Only the shuffle, and where a machine starts to show its records, depend on the seed. Records are told apart by their
keys alone, so what happens depends only on which rank is in which slot after the shuffle, which is uniform whatever the
input. So a bad shuffle is as rare for one input as for another, no input has only bad ones, and a bad one breaks a
limit: an error, never a wrong answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from annattn.mpc.model import Mail, Numbers, Words
from annattn.mpc.order import order_within
from annattn.mpc.parts.stages import in_order, index_within, join_mail
from annattn.mpc.parts.tree import Scan, Summary, Tree
from annattn.seeds import scramble

__all__ = ["MOST", "Samplesort", "fitting", "nearby", "plan_samplesort"]

FAILURE = 1e-3
"""The estimated probability that a seed is bad, at most; `docs/sorting.md` has how many bad ones were met."""
MOST = 25
"""The most machines of a plan, as a multiple of n/c for the c records per machine that it is made for.

More would do with less memory. A plan may be made for up to a quarter fewer records than there is room for (`nearby`).
"""


@dataclass(frozen=True)
class Samplesort:
    """How to sort: `arity`^`levels` machines of `rows` records; in a wave, `team` machines of `sample` per bucket.

    >>> plan = plan_samplesort(n=1_000_000, capacity=500)
    >>> plan.arity, plan.levels, plan.team, plan.rounds
    (9, 4, 13, 23)
    """

    rows: int
    arity: int
    levels: int
    team: int
    sample: int
    capacity: int
    seed: int = 0

    @property
    def buckets(self) -> int:
        """The machines that hold the records: one per bucket."""
        return self.arity**self.levels

    def first(self, wave: int) -> int:
        """The first machine of a wave; the records themselves are the last wave, on the first machines."""
        return 0 if wave == self.levels else self.buckets + self.team * (self.arity**wave - 1) // (self.arity - 1)

    def size(self, wave: int) -> int:
        """The number of machines of a wave."""
        return self.buckets if wave == self.levels else self.team * self.arity**wave

    @property
    def tree(self) -> Tree:
        """The tree that adds up the sizes of the buckets."""
        return Tree(self.buckets, self.capacity - 1, self.first(self.levels - 1) + self.size(self.levels - 1))

    @property
    def machines(self) -> int:
        """The machines of records, of waves, and of the tree."""
        return self.tree.base + self.tree.machines

    @property
    def rounds(self) -> int:
        """1 to shuffle, 1 to draw the samples, 4 for each level, twice the depth of the tree, 1 to place."""
        return 3 + 4 * self.levels + 2 * self.tree.depth

    def step(self, i: int, mail: Mail, keys: Sequence[int]) -> Mail:
        """Round i of the plan. No two records may have the same keys.

        After the last round machine j holds the ranks j·rows … (j+1)·rows - 1 in no particular order.
        """
        if i == 0:
            return self._shuffle(mail)
        if i == 1:
            return self._draw(mail)
        if i < 2 + 4 * self.levels:
            parts = [self._wave(wave, i - 2, mail, keys) for wave in range(self.levels + 1)]
            return join_mail(*(part for wave in parts for part in wave))
        i -= 2 + 4 * self.levels
        scan = Scan(
            leaves=self.buckets,
            width=mail.width,
            length=1,
            memory_words=self.capacity * mail.width,
            base=self.tree.base,
        )
        if i < scan.rounds:
            return scan.step(i, mail, _Count())
        data, before = scan.receive(mail)
        order = order_within(data.dest, [data.words[:, key] for key in keys])
        data = data.take(order)
        rank = before[order, 0].astype(np.int64) + index_within(data.dest)
        return Mail(rank // self.rows, data.dest, data.words)

    def _shuffle(self, mail: Mail) -> Mail:
        """Every record to the machine of its slot: slot x + j·p is the j-th of machine x."""
        position = mail.dest * self.rows + index_within(mail.dest)
        return Mail(_permutation(self.rows * self.buckets, self.seed)[position] % self.buckets, mail.dest, mail.words)

    def _draw(self, mail: Mail) -> Mail:
        """Every machine keeps its records and sends copies of some to the waves: record x + j·p of them is its j-th."""
        parts = [Mail(mail.dest, mail.dest, mail.words)]
        # In the order of slots. The order in which mail comes is that of senders, which the input may have arranged.
        drawn = mail.take(order_within(mail.dest, [self._slots(mail).astype(np.uint64)]))
        number = drawn.dest + index_within(drawn.dest) * self.buckets
        for wave in range(self.levels):
            chosen = np.flatnonzero(number < self.sample * self.size(wave))
            part, place = np.divmod(number[chosen], self.arity**wave)
            to = self.first(wave) + place * self.team + part % self.team
            parts.append(Mail(to, drawn.dest[chosen], drawn.words[chosen]))
        return join_mail(*parts)

    def _slots(self, mail: Mail) -> Numbers:
        """The slot of each record, found again from its sender: machines know the shuffle."""
        size = self.rows * self.buckets
        machine, which = np.unique(mail.dest, return_inverse=True)
        slots = machine[:, None] + np.arange(self.rows) * self.buckets
        # The positions before the shuffle that were sent to each machine, in the order in which it hears of them.
        position = np.argsort(_permutation(size, self.seed))[slots]
        order = np.argsort(position, axis=1)
        sent = np.take_along_axis(position, order, axis=1) + np.arange(len(machine))[:, None] * size
        first = np.searchsorted(sent.ravel(), which * size + mail.src * self.rows)
        place = first + index_within(mail.dest * self.buckets + mail.src)
        return np.take_along_axis(slots, order, axis=1).ravel()[place]

    def _wave(self, wave: int, time: int, mail: Mail, keys: Sequence[int]) -> list[Mail]:
        """What the machines of a wave send: they wait, pass a level, choose splitters, or are done."""
        first = self.first(wave)
        here = mail.take((mail.dest >= first) & (mail.dest < first + self.size(wave)))
        if len(here) == 0 or (wave < self.levels and time > 4 * wave + 2):
            return []
        if time >= 4 * wave and wave < self.levels:
            return [self._choose(wave, time - 4 * wave, here, keys)]
        level, waiting = divmod(time - wave - 2, 3)
        if level < 0 or waiting:
            return [Mail(here.dest, here.dest, here.words)]
        told = np.zeros(len(here), bool)
        if wave:
            told = (here.src >= self.first(wave - 1)) & (here.src < self.first(wave - 1) + self.size(wave - 1))
        own, splitters = here.take(~told), here.take(told)
        own = in_order(own, keys)
        child = self._children(own, splitters, keys)
        weight = self.arity ** (wave - 1 - level) * (1 if wave == self.levels else self.team)
        number = own.dest - first
        to = number + (child - number // weight % self.arity) * weight
        parts = [Mail(first + to, own.dest, own.words)]
        if wave < self.levels:
            parts.append(self._tell(wave, splitters))
        return parts

    def _choose(self, wave: int, stage: int, here: Mail, keys: Sequence[int]) -> Mail:
        """The splitters of one bucket, by the team that holds its sample: the team shows, the first picks, all tell."""
        if stage == 2:
            return self._tell(wave, here)
        own = in_order(here, keys)
        if stage == 0:
            shown = self.capacity // self.team
            # A machine's first record is somewhere in the first interval, so that all together miss nothing.
            start = scramble(np.arange(self.machines, dtype=np.uint64), self.seed + 2 + wave) >> np.uint64(40)
            picks = self._spaced(own, np.arange(shown), start / 2.0**24)
            leader = picks.dest - (picks.dest - self.first(wave)) % self.team
            return Mail(leader, picks.dest, picks.words)
        picks = self._spaced(own, np.arange(1, self.arity), np.zeros(self.machines))
        each = np.repeat(np.arange(len(picks)), self.team)
        to = picks.dest[each] + np.tile(np.arange(self.team), len(picks))
        return Mail(to, picks.dest[each], picks.words[each])

    def _spaced(self, own: Mail, at: Numbers, start: NDArray[Any]) -> Mail:
        """Records of each machine's sorted ones at places (at + start) of len(at) or, from 1, len(at) + 1 intervals."""
        starts = np.flatnonzero(index_within(own.dest) == 0)
        count = np.diff(starts, append=len(own))
        intervals = len(at) + int(at[0])
        place = ((at + start[own.dest[starts]][:, None]) * count[:, None] / intervals).astype(np.int64)
        return own.take(np.unique(starts[:, None] + place) if at[0] == 0 else (starts[:, None] + place).ravel())

    def _tell(self, wave: int, splitters: Mail) -> Mail:
        """Each machine's splitters to the machines of the next wave that have its digits and one more."""
        place, part = np.divmod(splitters.dest - self.first(wave), self.team)
        if wave + 1 == self.levels:
            splitters, place = splitters.take(part == 0), place[part == 0]
        each = np.repeat(np.arange(len(splitters)), self.arity)
        to = place[each] * self.arity + np.tile(np.arange(self.arity), len(splitters))
        if wave + 1 < self.levels:
            to = to * self.team + part[each]
        return Mail(self.first(wave + 1) + to, splitters.dest[each], splitters.words[each])

    def _children(self, own: Mail, splitters: Mail, keys: Sequence[int]) -> Numbers:
        """For each record, how many of its machine's splitters are at most as large; 0 if it knows none."""
        both = join_mail(Mail(splitters.dest, splitters.dest, splitters.words), own)
        kind = np.repeat(np.arange(2), [len(splitters), len(own)])
        by_machine = np.argsort(both.dest, kind="stable")
        machine, kind = both.dest[by_machine], kind[by_machine]
        order = order_within(machine, [*(both.words[by_machine, key] for key in keys), kind.astype(np.uint64)])
        passed = np.cumsum(kind[order] == 0)
        start = np.flatnonzero(index_within(machine) == 0)
        passed -= np.repeat((passed - (kind[order] == 0))[start], np.diff(start, append=len(machine)))
        return passed[kind[order] == 1]


class _Count(Summary):
    """How many records a machine holds."""

    length = 1

    def of(self, mail: Mail) -> tuple[Numbers, Words]:
        """One number per machine."""
        machine, count = np.unique(mail.dest, return_counts=True)
        return machine, count.astype(np.uint64)[:, None]

    def combine(self, left: Words, right: Words) -> Words:
        """The sum."""
        return left + right


@lru_cache(maxsize=8)
def _permutation(size: int, seed: int) -> Numbers:
    return np.random.default_rng([seed, size]).permutation(size)


@lru_cache(maxsize=4096)
def plan_samplesort(n: int, capacity: int, seed: int = 0) -> Samplesort | None:
    """The plan to sort n records, at most `capacity` per machine, in the fewest rounds.

    None if no plan keeps the estimated probability of a bad seed below `FAILURE` on at most `MOST` times as many
    machines as hold the records. More memory never has none.
    """
    if _least_capacity(n, capacity) is None:
        return None
    plans = [plan for tried in nearby(capacity) if (plan := _plan(n, tried)) is not None]
    if not plans:
        plans = [next(plan for tried in reversed(_ladder(capacity)) if (plan := _plan(n, tried)) is not None)]
    return replace(min(plans, key=lambda plan: (plan.rounds, plan.machines)), seed=seed)


def nearby(capacity: int) -> list[int]:
    """The capacities to plan for, up to a quarter less: whole arities and levels may suit one of them better.

    >>> nearby(500)
    [388, 407, 427, 448, 470, 493]
    """
    return [tried for tried in _ladder(capacity) if 4 * tried > 3 * capacity]


def _ladder(capacity: int) -> list[int]:
    """Capacities from 32 in steps of about 5 %, up to the given one."""
    steps, top = [], 32
    while top <= capacity:
        steps.append(top)
        top += max(1, top // 20)
    return steps


@lru_cache(maxsize=4096)
def _least_capacity(n: int, most: int) -> int | None:
    return next((tried for tried in _ladder(most) if _plan(n, tried) is not None), None)


@lru_cache(maxsize=65536)
def _plan(n: int, capacity: int) -> Samplesort | None:
    """The plan of the fewest levels, then on the fewest machines."""
    levels = 1
    while capacity * 2**levels <= 2 * MOST * n:
        plans, arity = [], max(2, _root(-(-n // capacity), levels))
        while arity * (arity - 1) < capacity and arity**levels * capacity <= MOST * n:
            plans.append(fitting(n, capacity, levels, arity))
            arity += max(1, arity // 256)
        found = [plan for plan in plans if plan is not None]
        if found:
            return min(found, key=lambda plan: plan.machines)
        levels += 1
    return None


def _root(number: int, power: int) -> int:
    """The least integer whose power is at least the number."""
    low, high = 0, 1
    while high**power < number:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**power < number else (low, middle)
    return high


SHARES = np.array([0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05])
"""Records per machine of a wave that are tried, as shares of the room for them."""
TEAMS = np.array([0.5, 0.75, 1, 1.5, 2, 3, 4, 6])
"""Machines of a team that are tried, as multiples of the arity."""


def fitting(n: int, capacity: int, levels: int, arity: int) -> Samplesort | None:
    """The plan on the fewest machines with this number of levels and this arity, or None if none is safe enough.

    >>> fitting(1_000_000, 500, levels=4, arity=9)
    Samplesort(rows=153, arity=9, levels=4, team=13, sample=128, capacity=500, seed=0)
    """
    rows, events = -(-n // arity**levels), 3 * (levels + 1) * arity**levels
    if rows > capacity or _poisson_tail(np.array(float(rows)), capacity - arity) >= math.log(FAILURE / events):
        return None
    room = capacity - arity * (arity - 1)
    sample, team = np.meshgrid(np.floor(SHARES * room), np.minimum(np.floor(TEAMS * arity), capacity // arity))
    drawn = sample * team
    # Of a bucket with fewer records than that, all are drawn.
    left = float(arity) ** np.arange(1, levels + 1) * float(rows)
    missing = np.maximum(0, 1 - drawn[..., None] / left)
    copies = np.minimum(rows, np.ceil(drawn[..., None] / float(arity) ** np.arange(1, levels + 1))).sum(axis=-1)
    # The logarithm of a bucket's size is about normal. A level adds the variance of a quantile of c·m samples, which is
    # (a-1)/(c·m), less for samples of most records, and that of the leader's view of them: c roundings to one of s/c.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        variance = levels * arity**2 * team / (6.0 * capacity**2) + (arity - 1) / drawn * missing.sum(axis=-1)
        ratio = np.exp(np.sqrt(2 * variance * math.log(events / FAILURE)))
        tails = np.maximum(_poisson_tail(rows * ratio, capacity - arity), _poisson_tail(sample * ratio, room))
    safe = (sample >= 2) & (team >= 1) & (rows + copies <= capacity) & (tails < math.log(FAILURE / events))
    if not safe.any():
        return None
    at = np.unravel_index(np.argmin(np.where(safe, team, np.inf)), team.shape)
    plan = Samplesort(rows, arity, levels, int(team[at]), int(sample[at]), capacity)
    return plan if plan.machines * capacity <= MOST * n else None


def _poisson_tail(mean: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """The logarithm of a bound on the chance of more than `limit` events (Chernoff)."""
    return np.where(mean < limit, limit - mean - limit * np.log(limit / np.minimum(mean, limit)), 0.0)
