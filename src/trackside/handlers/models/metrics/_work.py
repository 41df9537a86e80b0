"""The work of training iterations, and the times and rates that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from trackside.core.sketch import Sketch, quantiles_of

NS_PER_S: Final = 10**9
_FOLD_AT: Final = 256
_QUANTILES: Final = (0.50, 0.95, 0.99)
_OF_NONE: Final = {
    "avg_iteration_time_sec": None,
    "min_iteration_time_sec": None,
    "max_iteration_time_sec": None,
    "total_iteration_time_sec": 0.0,
    "p50_iteration_time_sec": None,
    "p95_iteration_time_sec": None,
    "p99_iteration_time_sec": None,
}


@attrs.define
class Durations:
    """
    Count, sum, extremes and distribution of some durations, in ns.

    The latest wait in a list, since extremes and a sketch take many at once for the price of a few. Sums are whole
    numbers, so that what is merged is what would have been added.
    """

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    """Of those that do not wait, as the next two."""
    max_ns: int = 0
    sketch: Sketch = attrs.field(factory=Sketch)
    waiting: list[int] = attrs.field(factory=list)

    def add(self, duration_ns: int) -> None:
        """Take one in."""
        self.total_ns += duration_ns  # first: what is no number must not wait
        self.count += 1
        self.waiting.append(duration_ns)
        if len(self.waiting) >= _FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Take what waits into the extremes and the sketch."""
        if self.waiting:
            self.waiting.sort()
            self._widen(self.waiting[0], self.waiting[-1])
            self.sketch.add(self.waiting)  # type: ignore[arg-type]  # ints are floats here
            self.waiting = []

    def merge(self, other: Durations) -> None:
        """Add all that *other* holds."""
        if other.count > len(other.waiting):
            self._widen(other.min_ns, other.max_ns)
            self.sketch.merge(other.sketch)
        self.count += other.count
        self.total_ns += other.total_ns
        self.waiting += other.waiting
        self.fold()

    def _widen(self, low_ns: int, high_ns: int) -> None:
        is_first = self.count == len(self.waiting)
        self.min_ns = low_ns if is_first else min(self.min_ns, low_ns)
        self.max_ns = high_ns if is_first else max(self.max_ns, high_ns)

    def to_plain(self) -> dict[str, Any]:
        """Return the state as plain data, the same whether it was looked at before or not."""
        self.fold()
        known = attrs.asdict(self, filter=lambda field, _: field.name not in {"sketch", "waiting"})
        return {**known, "sketch": self.sketch.to_wire()}

    def seconds(self) -> Mapping[str, float | None]:
        """
        Return average, extremes, total and percentiles in seconds, under One Logger's names.

        Of no durations the total is 0, and the rest None.
        """
        if not self.count:
            return _OF_NONE
        if self.count == len(self.waiting):  # a window, as a rule: a sketch would be made for this alone
            ordered = sorted(self.waiting)
            low_ns, high_ns = ordered[0], ordered[-1]
            found: Sequence[float | None] = quantiles_of(ordered, _QUANTILES)
        else:
            self.fold()
            low_ns, high_ns = self.min_ns, self.max_ns
            found = self.sketch.quantiles(_QUANTILES)
        p50, p95, p99 = (min(max(value or 0.0, low_ns), high_ns) / NS_PER_S for value in found)
        return {
            "avg_iteration_time_sec": self.total_ns / self.count / NS_PER_S,
            "min_iteration_time_sec": low_ns / NS_PER_S,
            "max_iteration_time_sec": high_ns / NS_PER_S,
            "total_iteration_time_sec": self.total_ns / NS_PER_S,
            "p50_iteration_time_sec": p50,
            "p95_iteration_time_sec": p95,
            "p99_iteration_time_sec": p99,
        }


def whole(given: Any, otherwise: int | None = None) -> int | None:
    """Return *given* as a whole number, or *otherwise* if it is none."""
    if type(given) is int:
        return given
    if given is None:
        return otherwise
    try:
        return int(given)
    except Exception:  # neither a number nor finite
        return otherwise


def number(given: Any, otherwise: float | None = None) -> float | None:
    """Return *given* as a float, or *otherwise* if it is no number."""
    if type(given) is float:
        return given
    if given is None:
        return otherwise
    try:
        return float(given)
    except Exception:  # as above
        return otherwise


def product(one: int | None, other: int | None) -> int | None:
    """Return the product, or None if a factor is not known."""
    return None if one is None or other is None else one * other


_PARTS: Final = ("avg_forward_time_sec", "avg_backward_time_sec", "avg_dataloader_time_sec")
"""The fields of the parts that are timed within iterations, in the order of `IterationWork.parts_ns`."""

_TERA: Final = 10**12
_NS_TIMES_TERA: Final = _TERA // NS_PER_S
_MOST_PARTS_WAITING: Final = 256 * len(_PARTS)


def _nothing() -> list[int]:
    return [0] * len(_PARTS)


@attrs.define
class IterationWork:
    """
    What some iterations did, over all ranks.

    Each figure has the number of the iterations that it is known of, or their time: a mean over all iterations would be
    wrong where it is known of some.
    """

    times: Durations = attrs.field(factory=Durations)
    failed: int = 0
    samples: int = 0
    known_samples: int = 0
    tokens: int = 0
    known_tokens_ns: int | None = None
    flops: float = 0.0
    """No whole number: a job of a minute on many GPUs does more than 64 bits can count."""
    known_flops_ns: int | None = None
    fastest: float | None = None
    """The throughput per GPU of the fastest iteration, in 10¹² operations per second; next, of the slowest."""
    slowest: float | None = None
    parts_ns: list[int] = attrs.field(factory=_nothing)
    parts_known: list[int] = attrs.field(factory=_nothing)
    waiting: list[int] = attrs.field(factory=list)
    """The parts of one iteration after the other, which `settle` adds up together for the price of a few."""

    def __bool__(self) -> bool:
        """Return whether there was an iteration at all."""
        return bool(self.times.count or self.failed)

    def add(self, duration_ns: int, samples: int | None, tokens: int | None, flops: float | None, ranks: int) -> None:
        """Take an iteration in that did not fail; *flops* are those of all *ranks*."""
        self.times.add(duration_ns)
        if samples is not None:
            self.samples += samples
            self.known_samples += 1
        if tokens is not None:
            self.tokens += tokens
            self.known_tokens_ns = (self.known_tokens_ns or 0) + duration_ns
        if flops is not None:
            self._add_flops(flops, duration_ns, ranks)

    def add_parts(self, parts_ns: list[int]) -> None:
        """Take in how long the parts of the same iteration took; 0 for one that it did not have."""
        self.waiting += parts_ns
        if len(self.waiting) >= _MOST_PARTS_WAITING:
            self.settle()

    def settle(self) -> None:
        """Add up the parts that wait."""
        if not self.waiting:
            return
        for place in range(len(_PARTS)):
            parts_ns = self.waiting[place :: len(_PARTS)]
            self.parts_ns[place] += sum(parts_ns)
            self.parts_known[place] += len(parts_ns) - parts_ns.count(0)
        self.waiting = []

    def _add_flops(self, flops: float, duration_ns: int, ranks: int) -> None:
        self.flops += flops
        self.known_flops_ns = (self.known_flops_ns or 0) + duration_ns
        if duration_ns > 0:
            per_gpu = flops / (duration_ns * _NS_TIMES_TERA * ranks)
            self._widen(per_gpu, per_gpu)

    def _widen(self, fastest: float, slowest: float) -> None:
        self.fastest = fastest if self.fastest is None else max(self.fastest, fastest)
        self.slowest = slowest if self.slowest is None else min(self.slowest, slowest)

    def merge(self, other: IterationWork) -> None:
        """Add all that *other* holds."""
        other.settle()
        self.times.merge(other.times)
        self.failed += other.failed
        self.samples += other.samples
        self.known_samples += other.known_samples
        self.tokens += other.tokens
        self.known_tokens_ns = _sum(self.known_tokens_ns, other.known_tokens_ns)
        self.flops += other.flops
        self.known_flops_ns = _sum(self.known_flops_ns, other.known_flops_ns)
        if other.fastest is not None and other.slowest is not None:
            self._widen(other.fastest, other.slowest)
        for place in range(len(_PARTS)):
            self.parts_ns[place] += other.parts_ns[place]
            self.parts_known[place] += other.parts_known[place]

    def to_plain(self) -> dict[str, Any]:
        """Return the state as plain data, the same whether it was looked at before or not."""
        self.settle()
        rest = attrs.asdict(self, filter=lambda field, _: field.name not in {"times", "waiting"})
        return {"times": self.times.to_plain(), **rest}

    def figures(self, ranks: int, peak_flops_per_s: float | None) -> dict[str, Any]:
        """Return the figures of the work under One Logger's names."""
        self.settle()
        tera_per_s = _per_second(self.flops, self.known_flops_ns)
        tflops = None if tera_per_s is None else tera_per_s / _TERA
        per_gpu = None if tflops is None else tflops / ranks
        parts = zip(_PARTS, self.parts_ns, self.parts_known, strict=True)
        return {
            **self.times.seconds(),
            **{name: ns / known / NS_PER_S if known else None for name, ns, known in parts},
            "num_train_samples": self.samples,
            "train_tokens": None if self.known_tokens_ns is None else self.tokens,
            "total_flops": None if self.known_flops_ns is None else self.flops,
            "avg_tflops": tflops,
            "avg_tokens_per_second": _per_second(self.tokens, self.known_tokens_ns),
            "avg_batch_size": self.samples / self.known_samples if self.known_samples else None,
            "train_throughput_per_gpu": per_gpu,
            "train_throughput_per_gpu_max": self.fastest,
            "train_throughput_per_gpu_min": self.slowest,
            "mfu": None if per_gpu is None or peak_flops_per_s is None else per_gpu * _TERA / peak_flops_per_s,
            "num_failed_iterations": self.failed,
        }


def _sum(mine: int | None, its: int | None) -> int | None:
    return its if mine is None else mine if its is None else mine + its


def _per_second(amount: float, time_ns: int | None) -> float | None:
    return amount * NS_PER_S / time_ns if time_ns else None
