"""The summary of a run, read back from its files when its processes have ended."""

from __future__ import annotations

import math
import shlex
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import attrs

import trackside
from charlm.events import SampleWritten
from charlm.overhead import Costs
from charlm.pictures import (
    goodput_table,
    main_spans,
    metrics_table,
    metrics_text,
    slowness_text,
    span_table,
    straggler_table,
    truth_text,
    unfinished_spans,
)
from charlm.tables import lay_out, number
from trackside.events import CounterWindow, UnreadableError
from trackside.handlers import LogCheck
from trackside.handlers.models import GoodputAccumulator, ScoreAggregator, SpanBuilder, TrainingMetrics
from trackside.report import read_report, report_page, write_trace


def print_summary(out: Path) -> None:
    """Print the content of the log in *out*, the cost of telemetry, and the files."""
    try:
        log = trackside.check_logs(out)
    except UnreadableError as error:
        print(f"\nNothing was recorded: {error}.")
        return
    for title, lines in _sections(out, log):
        print(f"\n{title}\n")
        for line in lines:
            print(f"    {line}".rstrip())


def _sections(out: Path, log: LogCheck) -> Iterator[tuple[str, list[str]]]:
    picture, spans, metrics, goodput = Picture(), SpanBuilder(), TrainingMetrics(), GoodputAccumulator()
    scores = ScoreAggregator()
    trackside.feed(trackside.replay(out), picture, spans, metrics, goodput, scores)

    yield "What trackside saw", [*lay_out(_events(log)), "", *_losses(log)]
    sources = main_spans(spans.result())
    if sources:
        last = max((source for source in sources if source.rank == 0), key=lambda source: source.attempt)
        title = f"The spans of rank 0, attempt {last.attempt}"
        yield title, [*lay_out(span_table(last)), "", *unfinished_spans(spans.result())]
    yield "Training", [*lay_out(metrics_table(metrics.result())), "", *metrics_text(metrics.result())]
    if sources:
        yield "Where the time went", [*truth_text(out), *lay_out(goodput_table(goodput.result()))]
    latest = scores.latest()
    if latest is not None:
        yield "Who is slow", [*slowness_text(out, latest), *lay_out(straggler_table(latest))]
    yield "Counters, over all ranks", lay_out(_counters(picture))
    yield "What the model writes by now", picture.sample.strip().splitlines()
    yield "What telemetry cost", list(_costs(out))
    if sources:
        yield "What stands out", [line for text in _findings(out) for line in _wrapped(text)]
    yield f"Files, below {_pasteable(out)}", lay_out(_files(out, log))
    yield "Look further", list(_commands(out))


@attrs.define
class Total:
    """A counter over its whole life and over all processes."""

    unit: str = ""
    minimum: float = math.inf
    maximum: float = -math.inf
    by_source: dict[str, tuple[int, float]] = attrs.field(factory=dict)
    """Count and sum: each window has them since the start, so the latest of a source is enough."""

    def add(self, window: CounterWindow) -> None:
        """Add one more *window*."""
        self.unit = window.unit
        self.by_source[window.source.id] = window.total_count, window.total_sum
        self.minimum = min(self.minimum, window.values.get("min", math.inf))
        self.maximum = max(self.maximum, window.values.get("max", -math.inf))


@attrs.define
class Picture:
    """A handler like any other: it could as well be subscribed while the job runs."""

    counters: dict[str, Total] = attrs.field(factory=lambda: defaultdict(Total))
    sample: str = ""

    def __call__(self, event: trackside.Event) -> None:
        """Remember the values that the summary needs of *event*."""
        if isinstance(event, CounterWindow):
            self.counters[event.name].add(event)
        elif isinstance(event, SampleWritten):
            self.sample = event.prompt + event.text


def _events(log: LogCheck) -> Iterator[tuple[str, ...]]:
    by_process: dict[str, Counter[str]] = defaultdict(Counter)
    for part in log.sources:
        workers = "'s workers" if part.source.role == "worker" else ""
        by_process[f"rank {part.source.rank}{workers}"].update(part.by_type)
    processes = sorted(by_process)
    yield "", *processes
    for name in sorted(set().union(*by_process.values())):
        yield name, *(f"{by_process[process][name]:,}" for process in processes)


def _losses(log: LogCheck) -> Iterator[str]:
    lost = {
        "given up for lack of room": sum(sum(part.dropped.values()) for part in log.sources),
        "missing from the files": sum(part.missing for part in log.sources),
    }
    damaged_bytes = sum(file.damaged_bytes for file in log.files)
    yield f"Lost: {', '.join(f'{count:,} {how}' for how, count in lost.items())}; {damaged_bytes:,} bytes damaged."
    killed = sum(part.ended is None for part in log.sources)
    yield f"{len(log.sources)} processes, each with a stream of its own."
    if killed:
        yield f"{killed} of them ended without saying so: the last second of those may be missing."


def _counters(picture: Picture) -> Iterator[tuple[str, ...]]:
    yield "", "count", "mean", "least", "most", "sum"
    for name, total in sorted(picture.counters.items()):
        count = sum(count for count, _ in total.by_source.values())
        whole = sum(part for _, part in total.by_source.values())
        numbers = (whole / count, total.minimum, total.maximum, whole) if count else ()
        yield f"{name} ({total.unit})", f"{count:,}", *map(number, numbers)


def _costs(out: Path) -> Iterator[str]:
    costs = Costs.load(out / "costs.json")
    if costs is None:
        yield "Not measured: the training did not come to its end."
        return
    direct = costs.direct
    step_s = direct.lasted_s / direct.steps
    yield (
        f"in the training loop   {100 * direct.calls_s / step_s:6.2f} % of the time:"
        f" {_micros(direct.calls_s)} a step, half of them below {_micros(direct.median_call_s)}"
    )
    yield (
        f"in its own threads     {100 * direct.threads_s / direct.lasted_s:6.2f} % of a core:"
        f" {_micros(direct.threads_s / direct.steps)} of CPU time a step"
    )
    if costs.comparison is not None:
        comparison = costs.comparison
        change, lowest, highest = comparison.change()
        yield f"with and without it    {change:+6.2f} % of a step, between {lowest:+.2f} % and {highest:+.2f} %"
    yield ""
    yield "The first is how long rank 0's calls take in a step that does nothing else,"
    yield f"the second what its threads' CPU clocks say of its last {direct.steps:,} steps."
    if costs.comparison is not None:
        pairs = len(comparison.with_it)
        yield f"The third is the median over {pairs} pairs of {comparison.steps} steps, and its 95 % bounds."
        yield "It includes the other rank's telemetry and the collector, which share these processors."
        if lowest <= 0 <= highest:
            yield "They hold 0: beside what else this machine does, the difference cannot be seen."


def _micros(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f} µs"


def _files(out: Path, log: LogCheck) -> Iterator[tuple[str, ...]]:
    yield "", "bytes"
    checkpoints = [(path, path.stat().st_size) for path in sorted((out / "checkpoints").glob("*.pt"))]
    for path, size_bytes in [(file.path, file.size_bytes) for file in log.files] + checkpoints:
        yield str(path.relative_to(out)), f"{size_bytes:,}"


def _wrapped(text: str) -> list[str]:
    """Return *text* as lines that fit; one without spaces to part it at stays as it is."""
    return textwrap.wrap(text, 96, break_long_words=False, break_on_hyphens=False) or [""]


def _findings(out: Path) -> Iterator[str]:
    """Write the report and the trace, and print the main finding."""
    report = read_report(out)
    (out / "report.html").write_text(report_page(report), encoding="utf-8")
    with (out / "trace.json").open("w", encoding="utf-8") as trace:
        write_trace(trace, out)
    yield report.verdict.summary
    for finding in report.verdict.findings:
        yield f"- {finding.title} {finding.look}"
    if not report.verdict.findings:
        yield report.verdict.headline
    yield ""
    yield f"{_pasteable(out / 'report.html')}: all of it with charts; open it in a browser"
    yield f"{_pasteable(out / 'trace.json')}: all ranks on one clock; open it at ui.perfetto.dev"


def _commands(out: Path) -> Iterator[str]:
    trackside_command = _pasteable(Path(sys.executable).with_name("trackside"))
    yield f"{trackside_command} goodput {_pasteable(out)}"
    yield f"{trackside_command} scores {_pasteable(out)}"
    yield f"{trackside_command} tail {_pasteable(out)} --type 'charlm.*' --last 20"


def _pasteable(path: Path) -> str:
    """Return *path* for a shell, short if it lies below the current directory."""
    path = Path.cwd() / path
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
