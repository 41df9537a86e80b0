"""What training iterations did, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs

from trackside.handlers.models.metrics._durations import NS_PER_S, Durations

PARTS: Final = ("forward", "backward", "dataloader")
"""What is timed within iterations, in the order of `Work.parts_ns`."""

_TERA: Final = 10**12
_NS_TIMES_TERA: Final = _TERA // NS_PER_S


def _nothing() -> list[int]:
    return [0] * len(PARTS)


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
            self.flops += flops
            self.told_flops_ns = (self.told_flops_ns or 0) + duration_ns
            if duration_ns > 0:
                per_gpu = flops / (duration_ns * _NS_TIMES_TERA * ranks)
                if self.fastest is None or per_gpu > self.fastest:
                    self.fastest = per_gpu
                if self.slowest is None or per_gpu < self.slowest:
                    self.slowest = per_gpu

    def add_parts(self, parts_ns: Sequence[int]) -> None:
        """Take in how long the parts of the same iteration took; 0 for one that it did not have."""
        for place, part_ns in enumerate(parts_ns):
            if part_ns:
                self.parts_ns[place] += part_ns
                self.parts_told[place] += 1

    def merge(self, other: Work) -> None:
        """Add all that *other* holds."""
        self.times.merge(other.times)
        self.failed += other.failed
        self.samples += other.samples
        self.told_samples += other.told_samples
        self.tokens += other.tokens
        self.told_tokens_ns = _sum(self.told_tokens_ns, other.told_tokens_ns)
        self.flops += other.flops
        self.told_flops_ns = _sum(self.told_flops_ns, other.told_flops_ns)
        self.fastest = max((rate for rate in (self.fastest, other.fastest) if rate is not None), default=None)
        self.slowest = min((rate for rate in (self.slowest, other.slowest) if rate is not None), default=None)
        self.parts_ns = [mine + its for mine, its in zip(self.parts_ns, other.parts_ns, strict=True)]
        self.parts_told = [mine + its for mine, its in zip(self.parts_told, other.parts_told, strict=True)]

    def figures(self, ranks: int, peak_flops_per_s: float | None) -> dict[str, Any]:
        """Return what is told of the work under One Logger's names, of which some differ between window and job."""
        seconds = self.times.seconds()
        tera_per_s = _per_second(self.flops, self.told_flops_ns)
        tflops = None if tera_per_s is None else tera_per_s / _TERA
        per_gpu = None if tflops is None else tflops / ranks
        parts = zip(PARTS, self.parts_ns, self.parts_told, strict=True)
        return {
            **{f"{name}_iteration_time_sec": value for name, value in seconds.items()},
            **{f"avg_{part}_time_sec": ns / told / NS_PER_S if told else None for part, ns, told in parts},
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
