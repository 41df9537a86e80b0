"""
The hit rate of straggler detection; no time is measured here.

``python -m benchmarks.detection`` simulates 256 ranks of which three take 1.3 times as long in one section, with 5 %
noise on each entry, and prints in how many runs all three and no others were found within three windows, by the number
of entries in a window and by threshold.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence

from trackside.events import SectionWindow, Source
from trackside.handlers.models.scores import ScoreAggregator, Thresholds

RANKS = 256
SLOW = 3
FACTOR = 1.3
NOISE = 0.05
WINDOWS = 3
SECTIONS = {"data": 2e6, "forward": 5e6, "backward": 9e6}
STEP_NS = 20_000_000
THRESHOLDS = (0.75, 0.85)
ENTRIES = (1, 2, 5, 10, 15, 20, 30, 100)

_SOURCES = [Source(id=str(rank), rank=rank, world_size=RANKS) for rank in range(RANKS)]


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="runs of each kind (default: 100)")
    seeds = parser.parse_args().seeds
    print("entries in a window    " + "".join(f"{entries:>7}" for entries in ENTRIES))
    found: dict[float, list[float]] = {threshold: [] for threshold in THRESHOLDS}
    for entries in ENTRIES:
        right = [_is_found(entries, seed) for seed in range(seeds)]
        for index, threshold in enumerate(THRESHOLDS):
            found[threshold].append(100 * sum(one[index] for one in right) / seeds)
    for threshold, shares in found.items():
        print(f"threshold {threshold:<13}" + "".join(f"{share:>6.0f}%" for share in shares))


def _is_found(entries: int, seed: int) -> list[bool]:
    """Return for each threshold whether exactly the slow ranks were found."""
    rng = random.Random(seed)
    slow = set(rng.sample(range(RANKS), SLOW))
    windows = list(_windows(rng, slow, entries))
    expected = {(rank, "section forward") for rank in slow}
    verdicts = []
    for threshold in THRESHOLDS:
        aggregator = ScoreAggregator(thresholds=Thresholds(section_relative=threshold), kinds=["relative"])
        for window in windows:
            aggregator(window)
        reports = aggregator.result().windows
        verdicts.append({(one.rank, one.what) for report in reports for one in report.stragglers} == expected)
    return verdicts


def _windows(rng: random.Random, slow: set[int], entries: int) -> Iterator[SectionWindow]:
    for window in range(WINDOWS):
        for source in _SOURCES:
            times = {
                name: [
                    typical * (FACTOR if source.rank in slow and name == "forward" else 1.0) * rng.gauss(1.0, NOISE)
                    for _ in range(entries)
                ]
                for name, typical in SECTIONS.items()
            }
            yield _window(source, window, times)


def _window(source: Source, window: int, times: Mapping[str, Sequence[float]]) -> SectionWindow:
    samples = list(times.values())
    counts = [len(sample) for sample in samples]
    first_step = window * counts[0]
    last_step = first_step + counts[0] - 1
    event = SectionWindow(
        at_ns=(last_step + 1) * STEP_NS,
        span_id=0,
        step=last_step,
        window=window,
        first_step=first_step,
        last_step=last_step,
        start_ns=first_step * STEP_NS,
        names=list(times),
        counts=counts,
        entries=counts,
        min_ns=[min(sample) for sample in samples],
        max_ns=[max(sample) for sample in samples],
        median_ns=[statistics.median(sample) for sample in samples],
        mean_ns=[statistics.fmean(sample) for sample in samples],
        std_ns=[0.0] * len(samples),  # scores do not read it
    )
    event._source = source  # noqa: SLF001  as the decoder does
    return event


if __name__ == "__main__":
    main()
