"""Means of step times and their errors: step times depend on those before them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

import attrs

CONFIDENCE: Final = 0.996
TAIL_CONFIDENCE: Final = 0.999
"""The confidence of the interval of a plain mean, which few values may move."""
TRIM: Final = 0.1
_MOST_VALUES: Final = 4_000
"""Longer series are replaced by the means of blocks, which changes neither their mean nor its error."""
_FEWEST: Final = 20


@attrs.frozen(kw_only=True)
class Location:
    """The location of the values of a series."""

    value: float
    error: float
    """The standard error of `value`, dependence between neighbours included; infinite of too few values."""
    effective: float
    """The number of independent values that would be as informative."""


def location(values: Sequence[float], trim: float = 0.0) -> Location:
    """
    Return the mean of a stationary series, the share *trim* of it left out at each end, and its standard error.

    The error of a mean is the spectral density at frequency zero over the number of values; it is that of an
    autoregression fitted to the series (Berk 1974; the order by Akaike's criterion). For a trimmed mean it is that of
    the series with its ends pulled in, over the share that is kept (Huber, Robust Statistics, section 3.3).

    Args:
        values: In the order of time.
        trim: From 0 to below a half.
    """
    count = len(values)
    if not count:
        return Location(value=math.nan, error=math.inf, effective=0.0)
    ordered = sorted(values)
    cut = int(count * trim)
    value = math.fsum(ordered[cut : count - cut]) / (count - 2 * cut)
    if count < _FEWEST:
        return Location(value=value, error=math.inf, effective=float(count))
    low, high = ordered[cut], ordered[count - 1 - cut]
    pulled = [min(max(one, low), high) for one in values] if cut else list(values)
    blocks = _blocks(pulled)
    variance, own = _long_run_variance(blocks)
    error = math.sqrt(variance / len(blocks)) / (1 - 2 * cut / count)
    effective = len(blocks) * own / variance if variance > 0 else float(count)
    return Location(value=value, error=error, effective=min(effective, float(count)))


def _blocks(values: list[float]) -> list[float]:
    size = -(-len(values) // _MOST_VALUES)
    if size == 1:
        return values
    return [math.fsum(values[at : at + size]) / size for at in range(0, len(values) - size + 1, size)]


def _long_run_variance(values: Sequence[float]) -> tuple[float, float]:
    """Return the variance that the mean of *values* has, times their number; and their own variance."""
    count = len(values)
    mean = math.fsum(values) / count
    centred = [value - mean for value in values]
    most = min(int(10 * math.log10(count)), count // 4)
    correlations = [math.fsum(map(_product, centred, centred[lag:])) / count for lag in range(most + 1)]
    own = correlations[0]
    # A series that is constant except for rounding has no variance to divide by.
    if own <= (1e-12 * abs(mean)) ** 2:
        return own, own
    best = math.inf
    chosen = own, 0.0
    for order, noise, weight in _autoregressions(correlations):
        # A correction for short series (Hurvich and Tsai 1989), without which the order is too high.
        criterion = math.log(noise) + (count + order) / (count - order - 2) if noise > 0 else -math.inf
        if criterion < best:
            best, chosen = criterion, (noise * count / (count - order - 1), weight)
    noise, weight = chosen
    # A root near one makes the mean unknowable; what so few values can show is bounded.
    variance = noise / max(1 - weight, 2 / math.sqrt(count)) ** 2
    return max(variance, own * 0.25), own


def _product(one: float, other: float) -> float:
    return one * other


def _autoregressions(correlations: Sequence[float]) -> list[tuple[int, float, float]]:
    """Return for each order a tuple: the order, the variance of the noise, the sum of the weights (Levinson-Durbin)."""
    found = [(0, correlations[0], 0.0)]
    weights: list[float] = []
    noise = correlations[0]
    for order in range(1, len(correlations)):
        if noise <= 0:
            break
        rest = correlations[order] - math.fsum(w * correlations[order - 1 - at] for at, w in enumerate(weights))
        reflection = rest / noise
        weights = [w - reflection * back for w, back in zip(weights, reversed(weights), strict=True)] + [reflection]
        noise *= 1 - reflection**2
        found.append((order, noise, math.fsum(weights)))
    return found


@attrs.frozen(kw_only=True)
class Difference:
    """The amount by which one series lies above another one."""

    before: float
    after: float
    change: float | None
    """Of `after` to `before`, as a share of `before`; None of nothing."""
    low: float | None
    high: float | None
    """The bounds of `change`; None if too little is known."""

    @property
    def is_shown(self) -> bool:
        """Whether zero is outside of the bounds."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def difference(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], trim: float, *, is_share: bool = False
) -> Difference:
    """
    Return how much the mean of *after* differs from that of *before*, with bounds.

    Args:
        before: A series of each run.
        after: Likewise.
        trim: See `location`.
        is_share: Whether values are shares already, so that their difference is given and not its share.
    """
    here, there = _together(before, trim), _together(after, trim)
    known = not is_share and here.value
    scale = abs(here.value) if known else 1.0
    if math.isnan(here.value) or math.isnan(there.value) or (not is_share and not known):
        return Difference(before=here.value, after=there.value, change=None, low=None, high=None)
    change = (there.value - here.value) / scale
    # The error of what is divided by counts as well (Fieller's interval, to the first order).
    ratio = 1.0 if is_share else there.value / here.value
    error = math.hypot(there.error, here.error * ratio) / scale
    if math.isinf(error):
        return Difference(before=here.value, after=there.value, change=change, low=None, high=None)
    confidence = CONFIDENCE if trim else TAIL_CONFIDENCE
    reach = quantile(min(here.effective, there.effective), confidence) * error
    low, high = change - reach, change + reach
    if is_share:  # shares of a whole differ by no more than all of it
        low, high = max(-1.0, low), min(1.0, high)
    if not is_share and here.value > 0 <= there.value:  # a length does not shrink by more than all of it
        low = max(-1.0, low)
    return Difference(before=here.value, after=there.value, change=change, low=low, high=high)


def _together(runs: Sequence[Sequence[float]], trim: float) -> Location:
    """Return the mean of the runs' means: where there are several, what they differ by is part of its error."""
    found = [location(run, trim) for run in runs if len(run) > 0]
    if len(found) <= 1:
        return found[0] if found else location(())
    value = statistics.fmean(one.value for one in found)
    within = math.fsum(one.error**2 for one in found) / len(found) ** 2
    between = statistics.variance([one.value for one in found]) / len(found)
    effective = math.fsum(one.effective for one in found) if between <= within else float(len(found))
    return Location(value=value, error=math.sqrt(max(within, between)), effective=effective)


def quantile(effective: float, confidence: float) -> float:
    """Return how many standard errors an interval reaches: Student's, by Cornish and Fisher's expansion."""
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    freedom = max(2.0, effective - 1)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
