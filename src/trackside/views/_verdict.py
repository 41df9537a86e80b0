"""From the figures to words: what costs most, which rank and section, since when, and what to look at next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trackside.views import _words as words
from trackside.views._bucket_rules import listed
from trackside.views._finding import NOTHING, Finding, Verdict
from trackside.views._report import Report
from trackside.views._rules import RULES

BOUND_FROM: Final = 0.50
"""The share of a step from which on it is bound by what takes it."""


def judge(report: Report) -> Verdict:
    """Return what stands out in *report*, what cost most first."""
    found = [finding for rule in RULES for finding in rule(report)]
    elapsed = report.goodput.elapsed_s
    # What has no cost yet comes after what takes a twentieth of the time, and before the rest.
    found.sort(key=lambda finding: -(finding.cost_s or elapsed / 20))
    bound = _bound(report, found)
    headline = found[0].title if found else NOTHING
    return Verdict(headline=headline, summary=_summary(report, bound), bound=bound, findings=tuple(found))


def _summary(report: Report, bound: str) -> str:
    result = report.goodput
    told = [(f"Goodput {words.percent(result.goodput)}: {words.seconds(result.productive_s)} of "
            f"{words.seconds(result.elapsed_s)} went into steps that count.")]  # fmt: skip
    if result.step_time.p50_s is not None:
        told.append(f"Half of the steps took less than {words.seconds(result.step_time.p50_s)}.")
    if bound:
        share = sum(part.share for part in report.parts if part.kind == bound)
        told.append(f"Steps are {_BOUND_WORDS[bound]}: {words.percent(share, 0)} of one is {listed(report, bound)}.")
    if report.losses.total:
        told.append(
            f"{words.plural(report.losses.total, 'event')} are missing here: what follows may be less than all."
        )
    return " ".join(told)


_BOUND_WORDS: Final = {"input": "input-bound", "compute": "compute-bound", "waiting": "bound by waiting for others"}


def _bound(report: Report, found: Sequence[Finding]) -> str:
    """Return what most of a step is, unless what was found says otherwise."""
    shares: dict[str, float] = {}
    for part in report.parts:
        shares[part.kind] = shares.get(part.kind, 0.0) + part.share
    shares.pop("other", None)
    if not shares:
        return ""
    kind, share = max(shares.items(), key=lambda item: item[1])
    others = {"input-bound": "input", "waiting": "waiting"}
    is_disputed = any(others.get(finding.kind, kind) != kind for finding in found)
    return kind if share >= BOUND_FROM and not is_disputed else ""
