"""What training iterations did, and how fast."""

from __future__ import annotations

from typing import Any, Final

import attrs

from trackside.handlers.models.metrics._durations import NS_PER_S, Durations

_PARTS: Final = ("avg_forward_time_sec", "avg_backward_time_sec", "avg_dataloader_time_sec")
"""What is told of what is timed within iterations, in the order of `Work.parts_ns`."""

_TERA: Final = 10**12
_NS_TIMES_TERA: Final = _TERA // NS_PER_S
_MOST_WAITING: Final = 256 * len(_PARTS)


def _nothing() -> list[int]:
    return [0] * len(_PARTS)


@attrs.define
class Work:
    """
    What some iterations did, over all ranks.

    Each figure remembers how many iterations told of it, or how long those took: a mean over iterations that did not
    tell would be a wrong one.
    """

    times: Durations = attrs.field(factory=Durations)
    failed: int = 0
    samples: int = 0
    told_samples: int = 0
    tokens: int = 0
    told_tokens_ns: int | None = None
    flops: int = 0
    told_flops_ns: int | None = None
    fastest: float | None = None
    """The throughput per GPU of the fastest iteration, in 10¹² operations per second; next, of the slowest."""
    slowest: float | None = None
    parts_ns: list[int] = attrs.field(factory=_nothing)
    parts_told: list[int] = attrs.field(factory=_nothing)
    waiting: list[int] = attrs.field(factory=list)
    """The parts of one iteration after the other, which `settle` adds up together for the price of a few."""

    def __bool__(self) -> bool:
        """Return whether there was an iteration at all."""
        return bool(self.times.count or self.failed)

    def add(self, duration_ns: int, samples: int | None, tokens: int | None, flops: int | None, ranks: int) -> None:
        """Take an iteration in that did not fail; *flops* are those of all *ranks*."""
        self.times.add(duration_ns)
        if samples is not None:
            self.samples += samples
            self.told_samples += 1
        if tokens is not None:
            self.tokens += tokens
            self.told_tokens_ns = (self.told_tokens_ns or 0) + duration_ns
        if flops is not None:
            self._add_flops(flops, duration_ns, ranks)

    def add_parts(self, parts_ns: list[int]) -> None:
        """Take in how long the parts of the same iteration took; 0 for one that it did not have."""
        self.waiting += parts_ns
        if len(self.waiting) >= _MOST_WAITING:
            self.settle()

    def settle(self) -> None:
        """Add up the parts that wait."""
        if not self.waiting:
            return
        for place in range(len(_PARTS)):
            parts_ns = self.waiting[place :: len(_PARTS)]
            self.parts_ns[place] += sum(parts_ns)
            self.parts_told[place] += len(parts_ns) - parts_ns.count(0)
        self.waiting = []

    def _add_flops(self, flops: int, duration_ns: int, ranks: int) -> None:
        self.flops += flops
        self.told_flops_ns = (self.told_flops_ns or 0) + duration_ns
        if duration_ns > 0:
            per_gpu = flops / (duration_ns * _NS_TIMES_TERA * ranks)
            self._widen(per_gpu, per_gpu)

    def _widen(self, fastest: float, slowest: float) -> None:
        self.fastest = fastest if self.fastest is None else max(self.fastest, fastest)
        self.slowest = slowest if self.slowest is None else min(self.slowest, slowest)

    def merge(self, other: Work) -> None:
        """Add all that *other* holds."""
        other.settle()
        self.times.merge(other.times)
        self.failed += other.failed
        self.samples += other.samples
        self.told_samples += other.told_samples
        self.tokens += other.tokens
        self.told_tokens_ns = _sum(self.told_tokens_ns, other.told_tokens_ns)
        self.flops += other.flops
        self.told_flops_ns = _sum(self.told_flops_ns, other.told_flops_ns)
        if other.fastest is not None and other.slowest is not None:
            self._widen(other.fastest, other.slowest)
        for place in range(len(_PARTS)):
            self.parts_ns[place] += other.parts_ns[place]
            self.parts_told[place] += other.parts_told[place]

    def to_plain(self) -> dict[str, Any]:
        """Return the state as plain data, the same whether it was looked at before or not."""
        self.settle()
        rest = attrs.asdict(self, filter=lambda field, _: field.name not in {"times", "waiting"})
        return {"times": self.times.to_plain(), **rest}

    def figures(self, ranks: int, peak_flops_per_s: float | None) -> dict[str, Any]:
        """Return what is told of the work under One Logger's names, of which some differ between window and job."""
        self.settle()
        tera_per_s = _per_second(self.flops, self.told_flops_ns)
        tflops = None if tera_per_s is None else tera_per_s / _TERA
        per_gpu = None if tflops is None else tflops / ranks
        parts = zip(_PARTS, self.parts_ns, self.parts_told, strict=True)
        return {
            **self.times.seconds(),
            **{name: ns / told / NS_PER_S if told else None for name, ns, told in parts},
            "num_train_samples": self.samples,
            "train_tokens": None if self.told_tokens_ns is None else self.tokens,
            "total_flops": None if self.told_flops_ns is None else self.flops,
            "avg_tflops": tflops,
            "avg_tokens_per_second": _per_second(self.tokens, self.told_tokens_ns),
            "avg_batch_size": self.samples / self.told_samples if self.told_samples else None,
            "train_throughput_per_gpu": per_gpu,
            "train_throughput_per_gpu_max": self.fastest,
            "train_throughput_per_gpu_min": self.slowest,
            "mfu": None if per_gpu is None or peak_flops_per_s is None else per_gpu * _TERA / peak_flops_per_s,
            "num_failed_iterations": self.failed,
        }


def _sum(mine: int | None, its: int | None) -> int | None:
    return its if mine is None else mine if its is None else mine + its


def _per_second(amount: int, time_ns: int | None) -> float | None:
    return amount * NS_PER_S / time_ns if time_ns else None
