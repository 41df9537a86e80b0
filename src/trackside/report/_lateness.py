"""
The rule of lateness: which ranks are slower than their peers, in which steps, and how probable that is by chance.

Ranks are compared within the same steps, so what slows the whole machine cancels. What is left is noise of single
ranks, and three tests say how probable a rank's lateness is by that alone: the aligned ranks of many short windows,
whatever the distribution of the noise, and Student's t of these and of few long ones, for jobs of few windows. In all
tests, neighbouring windows that depend on each other count as fewer events. docs/verdicts.md states the rule.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

import attrs

from trackside.handlers.models.steps import FEWEST_STEPS, LEAST_LATE_NS, least_lateness_ns

ALLOWANCE: Final = 1e-3
"""The probability that a job of equally fast ranks has one named, all its comparisons together."""
FEWEST_BLOCKS: Final = 3
_LONG_WINDOWS: Final = 8
_SHORT_IN_LONG: Final = 8
"""Short windows in a long one, where there are so many steps."""
_LEAST_SAVED: Final = 1 / 3
"""
The least share of a rank's excess in one part by which its steps must be longer. It is about a half where the noise of
other parts is large, and almost 0 where the rank only works in another order than its peers.
"""
_TESTS: Final = 3
_PULLED_FROM: Final = 0.95
"""The quantile of a rank's own steps to which longer ones are pulled in: few long steps are events and no lateness."""
GROSS_NS: Final = 5e6
"""
A rank later than that and than half a usual step is grossly late. Lateness that lasts counts as one event in the tests,
however long it is. A rank that slows down gradually, or repeatedly, has no stretch of one level, and is found by this
rule.
"""
_GROSS_SHARE: Final = 0.25
"""The share of the short windows in which it is."""
_GROSS_LASTS: Final = 0.08
_GROSS_LASTS_STEPS: Final = 8
"""The least length of one stretch of them on average: as a share of the job, and in steps."""
_GROSS_OF_PEERS: Final = 0.2
"""The largest share of that in which any other rank is grossly late, too."""
_UNLIKELY: Final = 4.0
"""The natural logarithm of the ratio of likelihoods from which on lateness did not begin, or end, in a block."""
_ONSET_STEPS: Final = 10
_ONSET_SHARE: Final = 0.05
"""Within so many steps, that share of all, or one block, the beginning is as good as known."""
_FEW_RANKS: Final = 16
_MOST_LATE: Final = 64
_MOST_TRIED: Final = 16

Rows = Sequence[Sequence[float]]
"""By rank and block of steps, a time in ns."""


@attrs.frozen(kw_only=True)
class LateStretch:
    """The blocks of steps in which a rank was late."""

    first: int
    last: int
    level_ns: float
    """The mean lateness, in ns of a step."""
    chance: float | None
    """
    The probability that noise alone makes a rank look so late in any of the comparisons made; None of a rank that is
    grossly late.
    """
    began: tuple[int, int] | None = None
    """The first and the last block in which it may have begun; None where that is as good as known."""
    by_part: bool = False
    """Whether one part alone says it: noise of the others hides that all of its time is longer, too."""
    cost_ns: float = 0.0
    """
    The time that a step would save if the part were as long as the peers': `level_ns` or, where noise of other parts
    hides that, in each step as much of the part as the rank was late by.
    """


def find_late(
    own: Rows, counts: Sequence[float], usual_ns: float, parts: Sequence[Rows] = ()
) -> dict[int, LateStretch]:
    """
    Return the late ranks by their place in *own*, each with the blocks in which it was late.

    A rank is late if all of its own time is longer than its peers', or one part of it is: the noise of the other parts
    may hide it, but not so far that the rank arrives before its peers. The one that lost most is found, left out of
    its peers' median, and the search begins again. Up to half of the ranks can be late, rounded up, as the median of
    one's peers is below one's own time so far; more are taken for the usual.

    Args:
        own: Of each rank the time of a step outside of what ranks wait for each other in, by block.
        counts: Steps in each block.
        usual_ns: The length of a usual step.
        parts: Likewise of each part of *own*.
    """
    if len(counts) < FEWEST_BLOCKS or sum(counts) < FEWEST_STEPS:
        return {}
    least_ns = least_lateness_ns(usual_ns, len(own))
    # A part that takes less on all ranks cannot make one late by so much.
    large = [rows for rows in parts if max(map(statistics.fmean, rows)) >= least_ns / 2]
    compared = _TESTS * len(own) * (1 + len(large))
    courses = [_windowed(rows, counts) for rows in (own, *large)]
    others, flagged = list(range(len(own))), list[int]()
    while len(others) > 1 and len(flagged) < min(_MOST_LATE, (len(own) + 1) // 2):
        found = (at for course in courses for at in course.late(courses[0], others, others, least_ns, compared))
        at = next(found, None)
        if at is None:
            break
        flagged.append(at)
        others.remove(at)
    # Those left are the peers of all late ones.
    stretches = {
        at: _stretch_of(at, others, [own, *large], courses, counts=counts, least_ns=least_ns, compared=compared)
        for at in flagged
    }
    late = {at: stretch for at, stretch in stretches.items() if stretch is not None}
    rest = [at for at in range(len(own)) if at not in late]
    return late | _gross(own, courses[0], rest, least_ns, usual_ns)


def _gross(
    own: Rows, course: _Windows, ranks: Sequence[int], least_ns: float, usual_ns: float
) -> dict[int, LateStretch]:
    """Return the one of *ranks* that is grossly late for long at a time, if the others hardly ever are."""
    gross = course.grossly_late(ranks, usual_ns)
    if len(ranks) < 2 or not gross:  # noqa: PLR2004
        return {}
    *rest, at = sorted(ranks, key=lambda one: sum(gross[one]))
    count = sum(gross[at])
    is_alone = sum(gross[rest[-1]]) <= _GROSS_OF_PEERS * count
    if not is_alone or count < _GROSS_SHARE * len(gross[at]) or not _lasts(gross[at], course.steps):
        return {}
    by_block = latenesses(own, [at], [one for one in ranks if one != at])[at]
    first, last = _best_stretch(_pulls(by_block, 2 * least_ns))
    level_ns = statistics.fmean(by_block[first : last + 1])
    return {at: LateStretch(first=first, last=last, level_ns=level_ns, chance=None, cost_ns=level_ns)}


def late_in_turn(own: Rows, counts: Sequence[float], usual_ns: float) -> tuple[dict[int, float], float]:
    """
    Return the ranks that are grossly late in turn, and what that costs, in ns of a step on average over all steps.

    They are given by their place in *own*, each with the share of the steps in which it is. Each is late for long at a
    time, and all together in at least a quarter of the steps. Fewer than two such ranks give an empty result; see
    `find_late` for the arguments.
    """
    course = _windowed(own, counts)
    gross = course.grossly_late(range(len(own)), usual_ns)
    shares = {at: sum(late) / len(late) for at, late in gross.items() if _lasts(late, course.steps)}
    shares = {at: share for at, share in shares.items() if share >= _GROSS_LASTS}
    if len(shares) < 2 or sum(shares.values()) < _GROSS_SHARE:  # noqa: PLR2004
        return {}, 0.0
    by_rank = latenesses(course.short, list(shares), range(len(own)))
    lost_ns = sum(late for at in shares for late, is_gross in zip(by_rank[at], gross[at], strict=True) if is_gross)
    return shares, lost_ns / len(course.short[0])


def _lasts(gross: Sequence[bool], steps: float) -> bool:
    """Return whether the stretches of windows of *steps* in which a rank is grossly late are long, on average."""
    begun = sum(now and not before for before, now in itertools.pairwise([False, *gross]))
    return sum(gross) >= max(_GROSS_LASTS * len(gross), _GROSS_LASTS_STEPS / steps) * begun


def _stretch_of(
    at: int,
    peers: Sequence[int],
    times: Sequence[Rows],
    courses: Sequence[_Windows],
    *,
    counts: Sequence[float],
    least_ns: float,
    compared: int,
) -> LateStretch | None:
    """Return since when rank *at* was late, and by how much; *times* and *courses* are all own time, then each part."""
    ranks = sorted([*peers, at])
    found = {
        place: episode
        for place, course in enumerate(courses)
        for episode in course.late(course, [at], ranks, least_ns, compared).values()
    }
    if not found:
        return None
    by_place = {place: latenesses(times[place], [at], peers)[at] for place in {0, *found}}
    # That it is late is known; what stands out most from its own noise says best since when.
    place = max(found, key=lambda one: _clarity(by_place[one][found[one].first : found[one].last + 1]))
    stretch = _refined(by_place[place], counts, found[place], least_ns)
    whole = by_place[0][stretch.first : stretch.last + 1]
    level_ns = max(LEAST_LATE_NS, statistics.fmean(whole))
    saved_ns = statistics.fmean(max(late, 0.0) - max(late - stretch.level_ns, 0.0) for late in whole)
    if 0 not in found and saved_ns < _LEAST_SAVED * stretch.level_ns:
        return None  # it is shorter elsewhere by what it is longer here
    return attrs.evolve(
        stretch,
        level_ns=level_ns,
        chance=found.get(0, stretch).chance,
        by_part=0 not in found,
        cost_ns=level_ns if 0 in found else max(level_ns, saved_ns),
    )


def _clarity(lateness: Sequence[float]) -> float:
    """Return by how many standard deviations the blocks are above zero."""
    pulled = _pulled_in(lateness)
    return statistics.fmean(pulled) / max(statistics.pstdev(pulled), 1e-9)


def _windowed(rows: Rows, counts: Sequence[float]) -> _Windows:
    pulled = [_pulled_in(row) for row in rows]
    bounds = _bounds(len(counts), min(len(counts), _LONG_WINDOWS))
    in_long = max(1, min(_SHORT_IN_LONG, len(counts) // _LONG_WINDOWS))
    short_bounds = _bounds(len(counts), (len(bounds) - 1) * in_long)
    return _Windows(
        bounds=bounds,
        in_long=in_long,
        long=[_means(row, bounds) for row in pulled],
        short=[_means(row, short_bounds) for row in pulled],
        steps=sum(counts) / (len(short_bounds) - 1),
        stretches=[
            (first, last)
            for first, last in itertools.combinations(range(len(bounds)), 2)
            if _is_enough(first, last, bounds, counts)
        ],
    )


def latenesses(own: Rows, of: Sequence[int], peers: Sequence[int]) -> dict[int, list[float]]:
    """Return by how much the time of each rank in *of* was above the median of its *peers*, in each block."""
    result: dict[int, list[float]] = {at: [] for at in of}
    if not result:
        return result
    for block in range(len(own[0])):
        column = {at: own[at][block] for at in peers}
        middle = statistics.median(column.values())
        for at, lateness in result.items():
            if at in column and len(column) <= _FEW_RANKS:  # among many, one value moves the median by next to nothing
                lateness.append(own[at][block] - statistics.median([v for peer, v in column.items() if peer != at]))
            else:
                lateness.append(own[at][block] - middle)
    return result


def _pulled_in(values: Sequence[float]) -> list[float]:
    bound = sorted(values)[min(len(values) - 1, int(len(values) * _PULLED_FROM))]
    return [min(value, bound) for value in values]


def _bounds(blocks: int, windows: int) -> list[int]:
    return [round(at * blocks / windows) for at in range(windows + 1)]


def _means(values: Sequence[float], bounds: Sequence[int]) -> list[float]:
    return [statistics.fmean(values[low:high]) for low, high in itertools.pairwise(bounds)]


def _above_mean(rows: Rows, at: int, rest: Sequence[int]) -> list[float]:
    columns = zip(*(rows[peer] for peer in rest), strict=True)
    return [own - statistics.fmean(values) for own, values in zip(rows[at], columns, strict=True)]


def _beside(values: Sequence[float], first: int, last: int, margin: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return the values before *first* and after *last*, without a *margin* in which lateness may begin or end."""
    return values[: max(0, first - margin)], values[last + margin :]


def _is_enough(first: int, last: int, bounds: Sequence[int], counts: Sequence[float]) -> bool:
    low, high = bounds[first], bounds[last]
    return last - first > 1 and high - low >= FEWEST_BLOCKS and sum(counts[low:high]) >= FEWEST_STEPS / 2


# --- is it chance? -------------------------------------------------------------------------------------------------


@attrs.frozen
class Scores:
    """The aligned ranks of values, and what shuffling the rows within each column makes of them."""

    rows: Rows
    means: Sequence[float]
    variances: Sequence[float]
    lasts: float
    """The number of neighbours that are one event, by all rows: a stretch of one row says too little of it."""

    def lasts_beside(self, first: int, last: int, margin: int) -> float:
        """Return the same; of few rows without the bounds of the stretch, as what begins there is in all of them."""
        if len(self.rows) > _FEW_RANKS:
            return self.lasts
        above = [[own - mean for own, mean in zip(row, self.means, strict=True)] for row in self.rows]
        thirds = [(row[first:last], *_beside(row, first, last, margin)) for row in above]
        return dependence(*itertools.chain.from_iterable(thirds))

    def surplus(self, at: int, first: int, last: int) -> float:
        """Return by how many standard deviations row *at* is above the mean, in columns *first* to *last*."""
        spread = math.fsum(self.variances[first:last])
        above = math.fsum(self.rows[at][first:last]) - math.fsum(self.means[first:last])
        return above / math.sqrt(spread) if spread > 0 else 0.0

    def chance(self, at: int, first: int, last: int, *, margin: int = 0) -> float:
        """Return the probability of such a surplus by chance; neighbours that depend on each other are one event."""
        above = [own - mean for own, mean in zip(self.rows[at], self.means, strict=True)]
        lasts = dependence(above[first:last], *_beside(above, first, last, margin))
        lasts = max(lasts, self.lasts_beside(first, last, margin))
        return 0.5 * math.erfc(self.surplus(at, first, last) / math.sqrt(2 * lasts))


def aligned_scores(rows: Rows) -> Scores:
    """
    Return the place of each value among all, after its column's median is taken away (Hodges and Lehmann 1962).

    For two rows that is Wilcoxon's test of signed ranks, except for half a place.
    """
    columns = list(zip(*rows, strict=True))
    middles = [statistics.median(column) for column in columns]
    apart = [[value - middle for value, middle in zip(row, middles, strict=True)] for row in rows]
    ordered = sorted(itertools.chain.from_iterable(apart))
    # Equal values share the mean of their places.
    scores = [[(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in row] for row in apart]
    by_column = list(zip(*scores, strict=True))
    means = list(map(statistics.fmean, by_column))
    above = [[own - mean for own, mean in zip(row, means, strict=True)] for row in scores]
    return Scores(scores, means, list(map(statistics.pvariance, by_column)), dependence(*above))


@attrs.frozen(kw_only=True)
class _Windows:
    """The means of all ranks' steps in windows."""

    bounds: Sequence[int]
    """The bounds of the long windows, in blocks."""
    in_long: int
    """Short windows in a long one."""
    long: Rows
    short: Rows
    steps: float
    """In a short window, on average."""
    stretches: Sequence[tuple[int, int]]
    """The stretches of long windows that are tested."""

    def grossly_late(self, ranks: Sequence[int], usual_ns: float) -> dict[int, list[bool]]:
        """Return for each of *ranks* in which short windows it is grossly late; empty if there are too few windows."""
        if len(self.short[0]) < FEWEST_STEPS:
            return {}
        bound_ns = max(GROSS_NS, usual_ns / 2)
        by_rank = latenesses(self.short, ranks, range(len(self.short)))
        return {at: [late >= bound_ns for late in own] for at, own in by_rank.items()}

    def late(
        self, whole: _Windows, of: Sequence[int], ranks: Sequence[int], least_ns: float, compared: int
    ) -> dict[int, LateStretch]:
        """
        Return the first late rank in *of*, the one that is late by most first; empty if none is.

        Args:
            whole: The windows of all own time: if these windows are of a part of it, the rank must arrive later, too.
            of: The ranks to look at.
            ranks: They and their peers.
            least_ns: The least lateness that matters.
            compared: The number of comparisons, by which each probability is multiplied.
        """
        by_rank, by_whole = latenesses(self.long, of, ranks), latenesses(whole.long, of, ranks)
        largest = {at: max(map(statistics.fmean, itertools.pairwise(by_rank[at]))) for at in of}
        tried = sorted((at for at in of if largest[at] >= least_ns), key=lambda at: -largest[at])[:_MOST_TRIED]
        scores = aligned_scores([self.short[at] for at in ranks]) if tried else None
        for at in tried:
            if scores is not None:
                found = self._stretch(
                    at,
                    ranks,
                    latenesses=(by_rank[at], by_whole[at]),
                    scores=scores,
                    least_ns=least_ns,
                    compared=compared,
                )
                if found is not None:
                    return {at: found}
        return {}

    def _stretch(
        self,
        at: int,
        ranks: Sequence[int],
        *,
        latenesses: tuple[Sequence[float], Sequence[float]],
        scores: Scores,
        least_ns: float,
        compared: int,
    ) -> LateStretch | None:
        """
        Return the stretch in which rank *at* was late that chance explains least; None if chance may explain each.

        The whole course of steps has half of the allowance, all shorter stretches together the other half.
        """
        lateness, by_whole = latenesses
        rest = [peer for peer in ranks if peer != at]
        # Noise is skewed: the mean of each rank is above its peers' median, but above their mean none is.
        above = _above_mean(self.long, at, rest)
        short = _above_mean(self.short, at, rest)
        row, best, least = ranks.index(at), None, math.inf
        # The bounds of few windows are those that were measured: between them nothing begins.
        margin = 1 if len(lateness) == _LONG_WINDOWS else 0
        for first, last in self.stretches:
            level_ns = statistics.fmean(lateness[first:last])
            if level_ns < least_ns or statistics.fmean(by_whole[first:last]) < LEAST_LATE_NS:
                continue
            low, high = first * self.in_long, last * self.in_long
            inside, sides = short[low:high], _beside(short, low, high, margin * self.in_long)
            lasts = max(dependence(inside, *sides), scores.lasts_beside(low, high, margin * self.in_long))
            chance = min(
                student(inside, [*itertools.chain(*sides)], lasts),
                # Each long window has as many regular pauses.
                student(
                    above[first:last],
                    [*itertools.chain(*_beside(above, first, last, margin))],
                    lasts / self.in_long,
                ),
                scores.chance(row, low, high, margin=margin * self.in_long),
            )
            is_whole = last - first == len(lateness)
            chance *= 2 * compared * (1 if is_whole else max(1, len(self.stretches) - 1))
            if chance <= min(ALLOWANCE, least):
                least = chance
                best = LateStretch(
                    first=self.bounds[first], last=self.bounds[last] - 1, level_ns=level_ns, chance=chance
                )
        return best


def dependence(*stretches: Sequence[float]) -> float:
    """
    Return how many neighbours are one event, from 1 on: what lasts for many steps, such as another process, is one.

    That is the sum of the correlations of an autoregression of the first order, each stretch about its own mean; the
    correlation is taken by one standard error larger than it was found (Bartlett 1946), as few values estimate it.
    """
    apart = [_centred(part) for part in stretches if part]
    squares = math.fsum(value**2 for part in apart for value in part)
    count = sum(map(len, apart))
    if squares <= 0 or count < FEWEST_STEPS:
        return 1.0
    products = math.fsum(one * other for part in apart for one, other in itertools.pairwise(part))
    found = products / squares
    found += (1 + 3 * found) / count  # a short series gives too low an estimate (Kendall 1954)
    found += math.sqrt(max(0.0, 1 - found**2) / count)
    return max(1.0, (1 + found) / max(1 - found, 2 / count))


def _centred(values: Sequence[float]) -> list[float]:
    mean = statistics.fmean(values)
    return [value - mean for value in values]


def student(inside: Sequence[float], outside: Sequence[float], dependent: float = 1.0) -> float:
    """
    Return the probability that the mean of *inside* is so far above zero by chance.

    The noise is that of both stretches, each about its own mean; *dependent* neighbours are one event.
    """
    dependent = max(1.0, dependent)
    freedom = math.floor(sum(max(0.0, len(part) / dependent - 1) for part in (inside, outside)))
    if not freedom:
        return 1.0
    mean = statistics.fmean(inside)
    squares = math.fsum(value**2 for part in (inside, outside) if part for value in _centred(part))
    error = max(math.sqrt(squares / freedom / len(inside)), 1e-6 * abs(mean), 1e-9)
    return _beyond(mean / error, freedom)


def _beyond(t: float, freedom: int) -> float:
    """Return the probability of a value above *t* by Student's distribution (Abramowitz and Stegun, 26.7.3 and 4)."""
    if t <= 0:
        return 0.5 + (0.5 - _beyond(-t, freedom) if t < 0 else 0.0)
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle)
    term = cosine if freedom % 2 else 1.0
    total = term if freedom > 1 or not freedom % 2 else 0.0
    for at in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine**2 * (at - 1) / at
        total += term
    total *= math.sin(angle)
    within = 2 / math.pi * (angle + total) if freedom % 2 else total
    return max(0.5 * (1 - within), 1e-14)


# --- since when? ---------------------------------------------------------------------------------------------------


def _refined(lateness: Sequence[float], counts: Sequence[float], stretch: LateStretch, least_ns: float) -> LateStretch:
    """Return the blocks that say most that the rank was late, if these are about the *stretch*."""
    pulled = _pulled_in(lateness)
    level_ns = max(least_ns, stretch.level_ns)
    first, last = stretch.first, stretch.last
    for _ in range(3):
        first, last = _best_stretch(_pulls(lateness, level_ns))
        level_ns = max(least_ns, statistics.fmean(pulled[first : last + 1]))
    earliest, latest, ended = _left_open(_pulls(lateness, level_ns), first, last)
    if ended == len(lateness) - 1:
        last = ended  # noise leaves open whether it is over
    shared = min(last, stretch.last) - max(first, stretch.first) + 1
    if 2 * shared < stretch.last - stretch.first + 1:
        first, last = stretch.first, stretch.last
        window = -(-len(lateness) // _LONG_WINDOWS)  # its bounds are those of long windows
        earliest, latest = max(0, first - window), min(first + window, last)
    if sum(counts[:first]) <= max(2, sum(counts) // 50):
        first = 0  # the first steps are unlike all others
    is_open = latest - earliest > 1 and sum(counts[earliest:latest]) > max(_ONSET_STEPS, _ONSET_SHARE * sum(counts))
    began = (earliest, latest) if first and is_open else None
    level_ns = statistics.fmean(lateness[first : last + 1])
    return attrs.evolve(stretch, first=first, last=last, began=began, level_ns=level_ns)


def _pulls(lateness: Sequence[float], level_ns: float) -> list[float]:
    """
    Return how far each block is above half of the level, by one level at most in both directions (Huber 1964).

    A sum of the values themselves would be that of the few longest blocks, which say nothing of when lateness began.
    """
    return [min(max(late - level_ns / 2, -level_ns), level_ns) for late in lateness]


def _best_stretch(values: Sequence[float]) -> tuple[int, int]:
    """Return the first and the last place of the stretch whose sum is largest (Kadane)."""
    best, best_at, total, start = -math.inf, (0, len(values) - 1), 0.0, 0
    for at, value in enumerate(values):
        if total < 0:
            total, start = 0.0, at
        total += value
        if total > best:
            best, best_at = total, (start, at)
    return best_at


def _left_open(pulls: Sequence[float], first: int, last: int) -> tuple[int, int, int]:
    """
    Return the first and the last block in which the stretch may have begun, and the last one in which it may end.

    Those are the blocks that make it less likely than from *first* to *last* by a factor of e⁴ at most, if the noise is
    normal and neighbours depend on each other as they do here.
    """
    before, inside, after = pulls[:first], pulls[first : last + 1], pulls[last + 1 :]
    outside = [*before, *after]
    if not outside:
        return first, first, last
    apart = [value for part in (before, inside, after) if part for value in _centred(part)]
    variance = math.fsum(value**2 for value in apart) / len(apart) * dependence(before, inside, after)
    rise = statistics.fmean(inside) - statistics.fmean(outside)
    least = -_UNLIKELY * variance / rise if rise > 0 else -math.inf

    def reach(values: Sequence[float]) -> int:
        """Return the largest number of *values* whose sum is not too small."""
        sums = itertools.accumulate(values)
        return max((count for count, total in enumerate(sums, 1) if total >= least), default=0)

    latest = first + min(reach([-value for value in inside]), len(inside) - 1) if before else first
    return first - reach(before[::-1]), latest, last + reach(after)
