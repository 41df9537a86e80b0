"""
The rule of lateness: which ranks are slower than their peers, in which steps, and how probable that is by chance.

Ranks are compared within the same steps, so a slowdown of the whole machine cancels. The noise of single ranks
remains. Three tests give the probability that this noise alone explains a rank's lateness: aligned ranks of many short
windows, for any distribution of the noise, and Student's t of the short and of few long windows, for jobs of few
windows. In all tests, neighbouring windows that depend on each other count as fewer events. docs/verdicts.md states
the rule.
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
"""The largest accepted probability, over all comparisons, that a rank is named in a job of equally fast ranks."""
FEWEST_BLOCKS: Final = 3
_LONG_WINDOWS: Final = 8
_SHORT_IN_LONG: Final = 8
"""The number of short windows in a long one, if there are enough blocks of steps."""
_LEAST_SAVED: Final = 1 / 3
"""
The least amount by which a rank's steps must be longer, as a share of its excess in one part. The actual share is about
0.5 if the noise of other parts is large, and almost 0 if the rank only works in another order than its peers.
"""
_TESTS: Final = 3
_PULLED_FROM: Final = 0.95
"""The quantile of a rank's own times that replaces longer ones: a few long steps are events, not lateness."""
GROSS_NS: Final = 5e6
"""
A rank is grossly late if its lateness is at least this and at least half a usual step. This rule finds a rank that
slows down gradually or repeatedly. The tests do not find it: it has no stretch of one level, and they count lasting
lateness as one event, however long it is.
"""
_GROSS_SHARE: Final = 0.25
"""The least share of the short windows in which a rank, or several in turn, must be grossly late."""
_GROSS_LASTS: Final = 0.08
_GROSS_LASTS_STEPS: Final = 8
"""The least mean length of a stretch of these windows: as a share of the job, and in steps."""
_GROSS_OF_PEERS: Final = 0.2
"""The most windows in which any other rank is grossly late, as a share of the late rank's."""
_UNLIKELY: Final = 4.0
"""The natural logarithm of the likelihood ratio above which lateness did not begin, or end, in a block."""
_ONSET_STEPS: Final = 10
_ONSET_SHARE: Final = 0.05
"""The beginning counts as known if it is known to within so many steps, this share of all steps, or one block."""
_FEW_RANKS: Final = 16
_MOST_LATE: Final = 64
_MOST_TRIED: Final = 16

Rows = Sequence[Sequence[float]]
"""Times in ns, by rank and block of steps."""


@attrs.frozen(kw_only=True)
class LateStretch:
    """The blocks of steps in which a rank was late."""

    first: int
    last: int
    level_ns: float
    """The mean lateness, in ns of a step."""
    chance: float | None
    """
    The probability that noise alone makes a rank look so late in any of the comparisons; None if it was found only
    because it is grossly late.
    """
    began: tuple[int, int] | None = None
    """The first and the last block in which the lateness may have begun; None if that counts as known."""
    by_part: bool = False
    """Whether only one part shows the lateness: the noise of other parts hides it in the whole own time."""
    cost_ns: float = 0.0
    """
    The time that a step would save if the rank were as fast as its peers: `level_ns` or, if only one part shows the
    lateness and this is more, the mean of the rank's lateness in each block up to its excess in that part.
    """


def find_late(
    own: Rows, counts: Sequence[float], usual_ns: float, parts: Sequence[Rows] = ()
) -> dict[int, LateStretch]:
    """
    Return the late ranks by their index in *own*, each with the blocks in which it was late.

    A rank is late if its whole own time is longer than its peers', or if one part of it is, because the noise of other
    parts may hide the lateness. In both cases it must arrive later than its peers. The search finds the rank that lost
    most, leaves it out of the peers, and begins again. Up to half of the ranks can be late, rounded up, because up to
    there the median of a late rank's peers is below its own time. If more are slow, their time counts as usual.

    Args:
        own: For each rank and block, the time of a step without the parts in which ranks wait for each other.
        counts: The number of steps in each block.
        usual_ns: The length of a usual step.
        parts: For each part of *own*, the times of this part alone.
    """
    if len(counts) < FEWEST_BLOCKS or sum(counts) < FEWEST_STEPS:
        return {}
    least_ns = least_lateness_ns(usual_ns, len(own))
    # A part that takes less on all ranks cannot make a rank late by so much.
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
    # The ranks that remain are the peers of all late ranks.
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
    """Return the one of *ranks* that is grossly late in long stretches, if the others hardly ever are, or nothing."""
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
    Return the ranks that are grossly late in turn, and the cost of this, in ns per step on average over all steps.

    The ranks are given by their index in *own*, each with the share of the steps in which it is grossly late. Each is
    grossly late in long stretches, and these shares add up to at least a quarter. Fewer than two such ranks give an
    empty result; see `find_late` for the arguments.
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
    """Return whether a rank is grossly late in long stretches, on average; a window has *steps* steps."""
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
    """Return the late stretch of rank *at* or None; *times* and *courses* are of all own time, then of each part."""
    ranks = sorted([*peers, at])
    found = {
        place: episode
        for place, course in enumerate(courses)
        for episode in course.late(course, [at], ranks, least_ns, compared).values()
    }
    if not found:
        return None
    by_place = {place: latenesses(times[place], [at], peers)[at] for place in {0, *found}}
    # The rank is late in each; the one that stands out most from its noise shows best since when.
    place = max(found, key=lambda one: _clarity(by_place[one][found[one].first : found[one].last + 1]))
    stretch = _refined(by_place[place], counts, found[place], least_ns)
    whole = by_place[0][stretch.first : stretch.last + 1]
    level_ns = max(LEAST_LATE_NS, statistics.fmean(whole))
    saved_ns = statistics.fmean(max(late, 0.0) - max(late - stretch.level_ns, 0.0) for late in whole)
    if 0 not in found and saved_ns < _LEAST_SAVED * stretch.level_ns:
        return None  # other parts are shorter by as much as this one is longer
    return attrs.evolve(
        stretch,
        level_ns=level_ns,
        chance=found.get(0, stretch).chance,
        by_part=0 not in found,
        cost_ns=level_ns if 0 in found else max(level_ns, saved_ns),
    )


def _clarity(lateness: Sequence[float]) -> float:
    """Return the mean of *lateness* in standard deviations, with the longest twentieth limited."""
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
            if at in column and len(column) <= _FEW_RANKS:  # among many, one value hardly moves the median
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
    """The aligned ranks of values, with the mean and the variance of each column when its rows are shuffled."""

    rows: Rows
    means: Sequence[float]
    variances: Sequence[float]
    lasts: float
    """The number of neighbours that are one event, from all rows: a stretch of one row is too short to estimate it."""

    def lasts_beside(self, first: int, last: int, margin: int) -> float:
        """Return `lasts`; for few rows without the bounds of the stretch, where a change of one row changes all."""
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
        """Return the probability of this surplus by chance; neighbours that depend on each other are one event."""
        above = [own - mean for own, mean in zip(self.rows[at], self.means, strict=True)]
        lasts = dependence(above[first:last], *_beside(above, first, last, margin))
        lasts = max(lasts, self.lasts_beside(first, last, margin))
        return 0.5 * math.erfc(self.surplus(at, first, last) / math.sqrt(2 * lasts))


def aligned_scores(rows: Rows) -> Scores:
    """
    Return the position of each value in the order of all, after subtracting its column's median (Hodges, Lehmann 1962).

    For two rows this is Wilcoxon's signed-rank test, except for half a position.
    """
    columns = list(zip(*rows, strict=True))
    middles = [statistics.median(column) for column in columns]
    apart = [[value - middle for value, middle in zip(row, middles, strict=True)] for row in rows]
    ordered = sorted(itertools.chain.from_iterable(apart))
    # Equal values share the mean of their positions.
    scores = [[(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in row] for row in apart]
    by_column = list(zip(*scores, strict=True))
    means = list(map(statistics.fmean, by_column))
    above = [[own - mean for own, mean in zip(row, means, strict=True)] for row in scores]
    return Scores(scores, means, list(map(statistics.pvariance, by_column)), dependence(*above))


@attrs.frozen(kw_only=True)
class _Windows:
    """The mean step times of all ranks in long and short windows."""

    bounds: Sequence[int]
    """The bounds of the long windows, in blocks."""
    in_long: int
    """The number of short windows in a long one."""
    long: Rows
    short: Rows
    steps: float
    """The mean number of steps in a short window."""
    stretches: Sequence[tuple[int, int]]
    """The stretches of long windows that are tested."""

    def grossly_late(self, ranks: Sequence[int], usual_ns: float) -> dict[int, list[bool]]:
        """Return for each of *ranks* whether it is grossly late in each short window; empty if there are too few."""
        if len(self.short[0]) < FEWEST_STEPS:
            return {}
        bound_ns = max(GROSS_NS, usual_ns / 2)
        by_rank = latenesses(self.short, ranks, range(len(self.short)))
        return {at: [late >= bound_ns for late in own] for at, own in by_rank.items()}

    def late(
        self, whole: _Windows, of: Sequence[int], ranks: Sequence[int], least_ns: float, compared: int
    ) -> dict[int, LateStretch]:
        """
        Return the rank in *of* that is late by most; empty if none is late.

        Args:
            whole: The windows of all own time: a rank that is longer in one part must be late in these, too.
            of: The ranks to test.
            ranks: The ranks to test and their peers.
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
        Return the stretch of lateness of rank *at* that chance explains least; None if chance may explain each.

        The whole course of steps gets half of the allowance; all shorter stretches share the other half.
        """
        lateness, by_whole = latenesses
        rest = [peer for peer in ranks if peer != at]
        # Noise is skewed, so the mean of each rank is above its peers' median, but not above their mean.
        above = _above_mean(self.long, at, rest)
        short = _above_mean(self.short, at, rest)
        row, best, least = ranks.index(at), None, math.inf
        # If there are fewer windows, each is one block, and lateness is taken to begin at a bound, not within it.
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
                # Regular pauses are equally many in each long window.
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
    Return the number of neighbours that are one event, at least 1; another process that runs for many steps is one.

    It is the sum of the correlations of a first-order autoregression, with each stretch about its own mean. The
    correlation is increased by one standard error (Bartlett 1946), because it is estimated from few values.
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

    The noise is estimated from both stretches, each about its own mean; *dependent* neighbours are one event.
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
    """Return *stretch* with refined bounds and level; if the new bounds cover less than half of it, keep the old."""
    pulled = _pulled_in(lateness)
    level_ns = max(least_ns, stretch.level_ns)
    first, last = stretch.first, stretch.last
    for _ in range(3):
        first, last = _best_stretch(_pulls(lateness, level_ns))
        level_ns = max(least_ns, statistics.fmean(pulled[first : last + 1]))
    earliest, latest, ended = _left_open(_pulls(lateness, level_ns), first, last)
    if ended == len(lateness) - 1:
        last = ended  # noise does not show whether the lateness is over
    shared = min(last, stretch.last) - max(first, stretch.first) + 1
    if 2 * shared < stretch.last - stretch.first + 1:
        first, last = stretch.first, stretch.last
        window = -(-len(lateness) // _LONG_WINDOWS)  # the bounds are those of long windows
        earliest, latest = max(0, first - window), min(first + window, last)
    if sum(counts[:first]) <= max(2, sum(counts) // 50):
        first = 0  # the first steps are unlike all others
    is_open = latest - earliest > 1 and sum(counts[earliest:latest]) > max(_ONSET_STEPS, _ONSET_SHARE * sum(counts))
    began = (earliest, latest) if first and is_open else None
    level_ns = statistics.fmean(lateness[first : last + 1])
    return attrs.evolve(stretch, first=first, last=last, began=began, level_ns=level_ns)


def _pulls(lateness: Sequence[float], level_ns: float) -> list[float]:
    """
    Return each block's lateness above half of *level_ns*, limited to one level in both directions (Huber 1964).

    Without the limit, a sum would depend on the few longest blocks, which do not show when lateness began.
    """
    return [min(max(late - level_ns / 2, -level_ns), level_ns) for late in lateness]


def _best_stretch(values: Sequence[float]) -> tuple[int, int]:
    """Return the first and the last index of the stretch whose sum is largest (Kadane)."""
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

    With any of these bounds, the stretch is less likely than from *first* to *last* by a factor of e⁴ at most, if the
    noise is normal and neighbours depend on each other as they do in *pulls*.
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
        """Return the largest number of leading *values* whose sum is at least *least*."""
        sums = itertools.accumulate(values)
        return max((count for count, total in enumerate(sums, 1) if total >= least), default=0)

    latest = first + min(reach([-value for value in inside]), len(inside) - 1) if before else first
    return first - reach(before[::-1]), latest, last + reach(after)
