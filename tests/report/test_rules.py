"""The rules' thresholds: as docs/verdicts.md states them, and as --explain says them."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from trackside.report import read_report
from trackside.report._report import Finding, Ruling, Slowdown
from trackside.report._verdict_rules import RULES, explained
from trackside.report._whatif import LateRank, Pause

pytestmark = pytest.mark.once

PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"
ROWS = {
    cells[0]: cells[2]
    for line in PAGE.read_text(encoding="utf-8").partition("## The rules")[2].partition("\n\nNothing")[0].splitlines()
    if len(cells := [cell.strip() for cell in line.strip("| ").split("|")]) == 4
    if cells[0] not in {"rule", "---"}
}
"""By rule of the page, when it speaks."""


def in_attempts(report, name, cost_s):
    """Return *report* with a bucket of its attempt of that length, and no other."""
    (bar,) = report.attempts
    return attrs.evolve(report, attempts=(attrs.evolve(bar, buckets_s={name: cost_s}),), first_batch_s=0.0)


def in_goodput(report, name, cost):
    """Return *report* with a bucket of its session of that length, and no other."""
    bare = in_attempts(report, "", 0.0)
    return attrs.evolve(bare, goodput=attrs.evolve(report.goodput, badput_s={name: cost}), shutdown_s=0.0, late=())


def restarted(report, cost_s):
    """Return *report* with a second attempt, and steps that were made again."""
    report = in_goodput(report, "WASTED_PROGRESS_FROM_DISRUPTION", cost_s)
    return attrs.evolve(report, attempts=report.attempts * 2)


def paused(report, cost_s):
    """Return *report* with regular pauses."""
    pause = Pause(rank=0, every_steps=10, count=9, length_ns=1e8, where="", cost_s=cost_s, first_step=9)
    return attrs.evolve(report, pauses=pause)


def late(report, cost_s):
    """Return *report* with a late rank."""
    fields = {"rank": 1, "what": "model_forward", "where": "model_forward", "own_ns": 2e7, "peers_ns": 1e7}
    times = {"lateness_ns": 1e7, "since_step": 0, "until_step": 99, "is_over": False, "excess_s": cost_s}
    return attrs.evolve(report, late=(LateRank(**fields, **times, lost_s=cost_s, chance=1e-4),))


def slowed(report, cost_s):
    """Return *report* with steps that became longer."""
    times = {"before_ns": 1e7, "after_ns": 2e7, "cost_s": cost_s, "part_before_ns": 0.0, "part_after_ns": 0.0}
    found = Slowdown(step=50, at_ns=report.goodput.start_ns, **times, part="", kind="")
    return attrs.evolve(report, slowdown=found)


# By rule: how to give a report a cost in seconds, and which of the shares in the page's row it is measured by.
BY_COST = {
    "restarts": (restarted, 0),
    "checkpoints": (lambda report, s: in_attempts(report, "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME", s), 0),
    "input-bound": (lambda report, s: in_goodput(report, "DATA_LOADING_SYNC", s), 0),
    "stragglers": (late, 0),
    "pauses": (paused, 0),
    "slowdown": (slowed, 1),
    "evaluation": (lambda report, s: in_attempts(report, "VALIDATION", s), 0),
    "custom": (lambda report, s: in_goodput(report, "CUSTOM_BADPUT_EVENTS", {"export": s}), 0),
    "startup": (lambda report, s: attrs.evolve(in_attempts(report, "", 0.0), startup_s=s), 0),
    "shutdown": (lambda report, s: attrs.evolve(report, shutdown_s=s), 0),
    "unaccounted": (lambda report, s: attrs.evolve(in_goodput(report, "OTHER", s), parts=()), 0),
}


@pytest.fixture
def healthy(made_up):
    """Return the report on a healthy job of about 30 s."""
    report = read_report(made_up(ranks=2, steps=300))
    return attrs.evolve(report, late=(), pauses=None, slowdown=None)


class TestThresholds:
    def test_page(self):
        """The page has a row for each rule, in their order."""
        assert list(ROWS) == list(RULES)

    @pytest.mark.parametrize("rule", BY_COST)
    def test_cost(self, rule, healthy):
        """A rule speaks from the share of the time on that the page states, and below it says that it would."""
        costing, place = BY_COST[rule]
        percent = int(re.findall(r"(\d+) %", ROWS[rule])[place])
        share_s = healthy.goodput.elapsed_s * percent / 100
        found, because = RULES[rule](costing(healthy, 1.02 * share_s))
        assert (len(found), found[0].cost_s) == (1, pytest.approx(1.02 * share_s)), because
        found, because = RULES[rule](costing(healthy, 0.98 * share_s))
        assert found == []
        if rule != "custom":  # of many buckets it says no single one's length
            assert f"from {percent} % and 0.2 s on it would be said" in because

    @pytest.mark.parametrize("rule", ["startup", "shutdown"])
    def test_once(self, rule, healthy):
        """What is spent once must take the seconds that the page states, too, however short the job is."""
        least_s = int(re.search(r"and (\d+) s", ROWS[rule])[1])
        short = attrs.evolve(healthy, goodput=attrs.evolve(healthy.goodput, elapsed_s=4.0))
        assert RULES[rule](BY_COST[rule][0](short, least_s + 0.1))[0]
        found, because = RULES[rule](BY_COST[rule][0](short, least_s - 0.1))
        assert (found, f"of at least {least_s} s" in because) == ([], True)

    @pytest.mark.parametrize("is_measured", [True, False])
    def test_waiting(self, is_measured, healthy):
        """Of an exchange that a span measures a smaller share of a step speaks than of one that lies in none."""
        percent = int(re.findall(r"(\d+) %", ROWS["waiting"])[not is_measured])
        parts = tuple(part for part in healthy.parts if is_measured or part.kind != "waiting")
        shares = (percent / 100 + 0.01, percent / 100 - 0.01)
        rulings = [RULES["waiting"](attrs.evolve(healthy, parts=parts, waited_share=share)) for share in shares]
        assert [len(found) for found, _ in rulings] == [1, 0]
        assert f"from {percent} % on it would be said" in rulings[1][1]

    def test_never_negative(self, healthy):
        """Time that two rules explain is not subtracted twice: what is left is never less than nothing."""
        explained = attrs.evolve(in_goodput(healthy, "OTHER", 2.0), shutdown_s=5.0)
        assert RULES["unaccounted"](explained)[1].startswith("in no bucket are 0 s")

    def test_failures(self, healthy):
        """Of a job without failures each of these rules says what it looked for."""
        assert {rule: RULES[rule](healthy) for rule in ("raised", "died", "exit", "missing-rank", "not-finite")} == {
            "raised": ([], "none was recorded"),
            "died": ([], "every rank has an end record"),
            "exit": ([], "no launcher was recorded"),
            "missing-rank": ([], "every rank of the last attempt left a log"),
            "not-finite": ([], "no loss was NaN or infinite, or none was recorded"),
        }
        assert {rule: RULES[rule](healthy)[1] for rule in ("stopped", "stall", "regression", "memory-growth")} == {
            "stopped": "every rank has a good end",
            "stall": "no stall was recorded that a step ended",
            "regression": "no baseline was given",
            "memory-growth": "no counter of bytes rose until the end",
        }


class TestExplained:
    def test_tags(self):
        """A rule that spoke names the tags of its findings, each once, so that a finding leads to its rule."""
        kinds = ("straggler", "input-bound", "straggler")
        found = tuple(Finding(kind=kind, title="", evidence=(), look="") for kind in kinds)
        rulings = [Ruling(rule="stragglers", findings=found, because="late"), Ruling(rule="died", because="no")]
        assert explained(rulings) == ["stragglers  spoke   [straggler] [input-bound] late", "died        silent  no"]
