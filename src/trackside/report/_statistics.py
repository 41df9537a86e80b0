"""Means of step times and their errors, for step times that depend on earlier ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

import attrs

CONFIDENCE: Final = 0.996
TAIL_CONFIDENCE: Final = 0.999
"""The confidence of the interval of an untrimmed mean, which a few values can move far."""
TRIM: Final = 0.1
_MOST_VALUES: Final = 4_000
"""Longer series are replaced by the means of blocks, which changes neither their mean nor its error."""
_FEWEST: Final = 20


@attrs.frozen(kw_only=True)
class Location:
    """The mean of a series, with its error."""

    value: float
    error: float
    """The standard error of `value`, dependence between neighbours included; infinite if there are too few values."""
    effective: float
    """The number of independent values that would be equally informative."""


def location(values: Sequence[float], trim: float = 0.0) -> Location:
    """
    Return the mean of a stationary series, without the share *trim* of values at each extreme, and its standard error.

    The squared error of a mean is the spectral density at frequency zero, divided by the number of values. The density
    is that of an autoregression fitted to the series (Berk 1974; the order by Akaike's criterion). The error of a
    trimmed mean is that of the series with trimmed values replaced by the nearest kept ones, divided by the share that
    is kept (Huber, Robust Statistics, section 3.3).

    Args:
        values: The series, in the order of time.
        trim: From 0 to below 0.5.
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
    """Return the variance of the mean of *values* times their number, and the variance of *values* themselves."""
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
        # The criterion is corrected for short series (Hurvich and Tsai 1989): otherwise the order is too high.
        criterion = math.log(noise) + (count + order) / (count - order - 2) if noise > 0 else -math.inf
        if criterion < best:
            best, chosen = criterion, (noise * count / (count - order - 1), weight)
    noise, weight = chosen
    # The error grows without bound as the weight nears one, which so few values cannot show.
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
    """The amount by which the mean of one series lies above that of another one."""

    before: float
    after: float
    change: float | None
    """The difference, as a share of `before` unless the values are shares themselves; None if it is undefined."""
    low: float | None
    high: float | None
    """`low` and `high` are the bounds of `change`; None if too little is known."""

    @property
    def is_shown(self) -> bool:
        """Whether zero lies outside the bounds."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def difference(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], trim: float, *, is_share: bool = False
) -> Difference:
    """
    Return how much the mean of *after* differs from that of *before*, with bounds.

    Args:
        before: One series for each run.
        after: Likewise.
        trim: See `location`.
        is_share: Whether the values are shares themselves, so that `Difference.change` is not divided by the mean.
    """
    here, there = _together(before, trim), _together(after, trim)
    known = not is_share and here.value
    scale = abs(here.value) if known else 1.0
    if math.isnan(here.value) or math.isnan(there.value) or (not is_share and not known):
        return Difference(before=here.value, after=there.value, change=None, low=None, high=None)
    change = (there.value - here.value) / scale
    # The error of the divisor counts as well (Fieller's interval, to first order).
    ratio = 1.0 if is_share else there.value / here.value
    error = math.hypot(there.error, here.error * ratio) / scale
    if math.isinf(error):
        return Difference(before=here.value, after=there.value, change=change, low=None, high=None)
    confidence = CONFIDENCE if trim else TAIL_CONFIDENCE
    reach = quantile(min(here.effective, there.effective), confidence) * error
    low, high = change - reach, change + reach
    if is_share:  # two shares of a whole differ by 1 at most
        low, high = max(-1.0, low), min(1.0, high)
    if not is_share and here.value > 0 <= there.value:  # a length shrinks by at most all of it
        low = max(-1.0, low)
    return Difference(before=here.value, after=there.value, change=change, low=low, high=high)


def _together(runs: Sequence[Sequence[float]], trim: float) -> Location:
    """Return the mean of the runs' means; if there are several runs, its error covers their differences."""
    found = [location(run, trim) for run in runs if len(run) > 0]
    if len(found) <= 1:
        return found[0] if found else location(())
    value = statistics.fmean(one.value for one in found)
    within = math.fsum(one.error**2 for one in found) / len(found) ** 2
    between = statistics.variance([one.value for one in found]) / len(found)
    effective = math.fsum(one.effective for one in found) if between <= within else float(len(found))
    return Location(value=value, error=math.sqrt(max(within, between)), effective=effective)


def quantile(effective: float, confidence: float) -> float:
    """Return the half-width of an interval in standard errors: Student's quantile, by Cornish-Fisher expansion."""
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    freedom = max(2.0, effective - 1)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
