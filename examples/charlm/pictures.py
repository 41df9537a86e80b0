"""The results of trackside's models for a run, in words and columns."""

from __future__ import annotations

import textwrap
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from charlm.disruption import Kill, Restart
from charlm.slowness import Slowness
from charlm.tables import NS_PER_MS, NS_PER_S, number
from trackside.handlers.models import MetricsResult, ScoreReport, SourceSpans, SpanReport
from trackside.handlers.models.goodput import GoodputResult


def main_spans(report: SpanReport) -> list[SourceSpans]:
    """Return the spans of the ranks, without those of their data loading processes."""
    return [source for source in report.sources if source.role == "main"]


def span_table(source: SourceSpans) -> Iterator[tuple[str, ...]]:
    """Yield all spans of a process by name, each name below the one that it was found in."""
    totals = {total.name: total for total in source.totals}
    names = {span.id: span.name for span in source.spans}
    latest = {span.name: span for span in source.spans if span.name in totals and (span.depth or not span.parent_id)}
    inside: dict[str, list[str]] = defaultdict(list)
    for span in sorted(latest.values(), key=lambda span: -span.start_ns):
        inside[names.get(span.parent_id, "")].append(span.name)
    yield "", "count", "mean ms", "total s"
    pending = [(name, 0) for name in inside[""]]
    while pending:
        name, depth = pending.pop()
        total = totals[name]
        mean_ms = total.total_ns / total.count / NS_PER_MS
        yield "  " * depth + name, f"{total.count:,}", f"{mean_ms:,.1f}", f"{total.total_ns / NS_PER_S:,.2f}"
        pending += [(inner, depth + 1) for inner in inside[name]]


def unfinished_spans(report: SpanReport) -> Iterator[str]:
    """Yield the open spans of each rank whose log has no end."""
    for source in main_spans(report):
        if source.open and source.ended_ns is None:
            spans = ", ".join(
                f"{span.name}\N{NO-BREAK SPACE}({(source.last_ns - span.start_ns) / NS_PER_S:.1f}\N{NO-BREAK SPACE}s)"
                for span in source.open
            )
            line = f"Rank {source.rank}, attempt {source.attempt}, open: {spans}."
            for part in textwrap.wrap(line, 96, subsequent_indent="  ", break_on_hyphens=False):
                yield part.replace("\N{NO-BREAK SPACE}", " ")


def metrics_table(result: MetricsResult) -> Iterator[tuple[str, ...]]:
    """Yield the time and the speed of each rank's steps."""
    yield "", "steps", "mean ms", "min ms", "p95 ms", "max ms", "chars/s", "GFLOP/s", "loss"
    for source in result.sources:
        metrics = source.training
        if metrics is not None:
            yield (
                f"rank {source.rank}, attempt {source.attempt}",
                f"{metrics.num_iterations:,}",
                *(
                    number(seconds, 1e3)
                    for seconds in (
                        metrics.avg_iteration_time_sec,
                        metrics.min_iteration_time_sec,
                        metrics.p95_iteration_time_sec,
                        metrics.max_iteration_time_sec,
                    )
                ),
                number(metrics.avg_tokens_per_second),
                number(metrics.avg_tflops, 1e3),
                number(metrics.latest_loss),
            )


def metrics_text(result: MetricsResult) -> Iterator[str]:
    """Yield the other spans of rank 0's last attempt: validation and checkpoints."""
    ranks_0 = [source for source in result.sources if source.rank == 0]
    if not ranks_0:
        return
    last = ranks_0[-1]
    yield "Characters and FLOP are of all ranks together; the loss is the last step's, in nats/char."
    if last.validation is not None:
        metrics = last.validation
        total_s, loss = number(metrics.total_iteration_time_sec), number(metrics.latest_loss)
        yield f"Validation: {metrics.num_iterations} batches in {total_s} s, the last one's loss {loss} nats/char."
    if last.productive is not None:
        saved, strategy = last.productive, last.checkpoints.get("sync")
        blocked_s = number(strategy.save_checkpoint_sync_time_total_sec) if strategy is not None else "?"
        yield (
            f"Checkpoints: {saved.save_checkpoint_success_count} saved in {blocked_s} s,"
            f" {saved.save_checkpoint_failure_count} failed; each {saved.checkpoint_size or 0:,} bytes;"
            f" {saved.productive_train_iterations:,} steps are safe."
        )


def truth_text(out: Path) -> Iterator[str]:
    """Yield the script's own record of the kill; nothing if there was none."""
    kill, restart = Kill.load(out), Restart.load(out)
    if kill is None:
        return
    at = time.strftime("%H:%M:%S", time.localtime(kill.at_s))
    yield f"The truth, from the script's own clock: rank {kill.rank} was killed at {at}, before its step {kill.step}."
    if restart is not None:
        yield (
            f"The next attempt began {restart.began_s - kill.at_s:.2f} s later, and went on at step"
            f" {restart.first_step}. {kill.step - restart.first_step} steps were lost:"
        )
        yield f"{kill.lost_s:.2f} s, and {kill.broken_s(out):.2f} s until the others noticed and broke off theirs."
    yield "What telemetry found out by itself:"
    yield ""


def goodput_table(result: GoodputResult) -> Iterator[tuple[str, ...]]:
    """Yield the buckets of the job's time, the largest first."""
    spent = {"productive": result.productive_s}
    for bucket, lost in result.badput_s.items():
        spent.update({f"{bucket}: {kind}": s for kind, s in lost.items()} if isinstance(lost, dict) else {bucket: lost})
    yield "", "seconds", "percent"
    for name, spent_s in sorted(spent.items(), key=lambda entry: -entry[1]):
        if spent_s:
            yield name, f"{spent_s:.2f}", f"{100 * spent_s / result.elapsed_s:.1f}"
    total_s = sum(spent.values())
    yield "total", f"{total_s:.2f}", f"{100 * total_s / result.elapsed_s:.1f}"


def slowness_text(out: Path, report: ScoreReport) -> Iterator[str]:
    """Yield the script's own record of the slow rank, and the rank that trackside found by the last scores."""
    truth = Slowness.load(out)
    if truth is not None:
        yield (
            f"The truth: from step {truth.from_step} on rank {truth.rank} took {1e3 * truth.by_s:g} ms longer"
            " over each batch."
        )
    yield f"What telemetry found out by itself, by steps {report.first_step} to {report.last_step}:"
    yield ""
    slow = [one for one in report.stragglers if one.kind == "relative"]
    for one in slow:
        since = f"since the window that began at step {one.since_step}"
        yield f"rank {one.rank} is slow: {one.what}, score {one.score:.2f}, low {since}"
        yield f"  it costs {1e3 * one.lost_s_per_step:.1f} ms a step"
    if not slow:
        yield "nobody is"
    yield ""


def straggler_table(report: ScoreReport) -> Iterator[tuple[str, ...]]:
    """Yield the scores of all ranks in each section: 0.5 is twice as slow as the fastest."""
    sections = report.relative.sections
    yield "", *sections
    for index, rank in enumerate(report.ranks):
        yield f"rank {rank}", *(number(column[index]) for column in sections.values())
