"""The rules' thresholds: as docs/verdicts.md states them, and as --explain says them."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from trackside.events import Source
from trackside.report import read_report
from trackside.report._build import find_rises
from trackside.report._gather import Bin, Trace, Watched
from trackside.report._report import (
    ErrorRow,
    Finding,
    NotFinite,
    Part,
    Ruling,
    Slowdown,
    StallRow,
    Standstill,
    StepQuantiles,
)
from trackside.report._statistics import Difference
from trackside.report._verdict_rules import RULES, explained, judge
from trackside.report._whatif import LateRank, Pause, gap

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
    fields = {"ranks": (0,), "is_every_rank": False, "every_steps": 10, "steps": (9, 19, 29), "length_ns": 1e8}
    pause = Pause(**fields, where="", cost_s=cost_s)
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


class TestSince:
    @pytest.mark.parametrize(
        ("began", "is_over", "since", "evidence"),
        [
            (None, False, "since step 50", []),
            (None, True, "in steps 50 to 99", []),
            ((30, 70), False, "since about step 50", ["in one of the steps 30 to 70"]),
            ((30, 70), True, "in about steps 50 to 99", ["in one of the steps 30 to 70"]),
        ],
    )
    def test_words(self, healthy, began, is_over, since, evidence):
        """If noise leaves open since when a rank is late, the title says *about*, and the evidence between when."""
        report = late(healthy, 5.0)
        one = attrs.evolve(report.late[0], since_step=50, began=began, is_over=is_over)
        (found,) = RULES["stragglers"](attrs.evolve(report, late=(one,)))[0]
        assert f"slow in model_forward {since}: 20 ms a step" in found.title
        opening = "noise leaves open when it began: "
        assert [line.removeprefix(opening) for line in found.evidence if line.startswith(opening)] == evidence

    @pytest.mark.parametrize(("since", "overlap"), [(99, ", in the same steps: their costs overlap"), (100, "")])
    def test_two_late_ranks(self, since, overlap, healthy):
        """Of ranks that are late in the same steps it is said that their costs are of the same time."""
        (one,) = late(healthy, 5.0).late
        other = attrs.evolve(one, rank=0, since_step=since, until_step=199)
        found = RULES["stragglers"](attrs.evolve(healthy, late=(one, other)))[0]
        assert [finding.evidence[-1] for finding in found] == [f"late as well: rank {at}{overlap}" for at in (0, 1)]


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
        """Time that is spent once must take the seconds that the page states, too, however short the job is."""
        least_s = int(re.search(r"and (\d+) s", ROWS[rule])[1])
        short = attrs.evolve(healthy, goodput=attrs.evolve(healthy.goodput, elapsed_s=4.0))
        assert RULES[rule](BY_COST[rule][0](short, least_s + 0.1))[0]
        found, because = RULES[rule](BY_COST[rule][0](short, least_s - 0.1))
        assert (found, f"of at least {least_s} s" in because) == ([], True)

    @pytest.mark.parametrize(
        ("where", "is_said"), [(gap("optimizer_update", "data_loading"), True), ("forward", False)]
    )
    def test_pause_without_a_span(self, where, is_said, healthy):
        """Pauses between the parts may be saves or evaluations without a span: this is said, but not of a part."""
        report = paused(healthy, healthy.goodput.elapsed_s / 2)
        report = attrs.evolve(report, pauses=attrs.evolve(report.pauses, where=where))
        ((finding,), _) = RULES["pauses"](report)
        assert ("saved or evaluated without a span" in finding.look) == is_said

    @pytest.mark.parametrize(
        ("ranks", "is_every_rank", "who", "rank"),
        [
            ((3,), False, "Rank 3 pauses every", 3),
            ((0, 2), False, "Ranks 0, 2 pause every", None),
            ((0, 1), True, "Every rank pauses every", None),
        ],
    )
    def test_who_pauses(self, ranks, is_every_rank, who, rank, healthy):
        """Every rank pauses only if all do; else those that do are named."""
        report = paused(healthy, healthy.goodput.elapsed_s / 2)
        pauses = attrs.evolve(report.pauses, ranks=ranks, is_every_rank=is_every_rank)
        ((finding,), _) = RULES["pauses"](attrs.evolve(report, pauses=pauses))
        assert finding.title.startswith(who)
        assert finding.rank == rank

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


S = 10**9


def alive(report, *last_s, state="running", stepped_s=0.0):
    """Return *report* with ranks without an end, last heard of so long after its start; the last step ended then."""
    start_ns = report.goodput.start_ns
    (row, *_) = report.ranks
    end = {"has_good_end": False, "state": state, "interval_s": 1.0}
    rows = [
        attrs.evolve(
            row,
            rank=rank,
            last_ns=start_ns + round(at_s * S),
            stepped_ns=start_ns + round(stepped_s * S),
            last_step=9,
            **end,
        )
        for rank, at_s in enumerate(last_s)
    ]
    goodput = attrs.evolve(report.goodput, end_ns=start_ns + round(max(last_s) * S))
    return attrs.evolve(report, ranks=tuple(rows), goodput=goodput, age_s=0.0, open=(), ranks_total=len(rows))


def raised_on(rank, at_ns, kind, message):
    """Return an exception that ended a rank."""
    place = {"attempt": 0, "name": "", "step": 9}
    return ErrorRow(rank=rank, at_ns=at_ns, type=kind, message=message, is_out_of_memory=False, is_fatal=True, **place)


class TestFailures:
    """Just below and just above each threshold of the rules about failures."""

    @pytest.mark.parametrize(("age_s", "found"), [(60.0, 0), (60.1, 1)])
    def test_old(self, age_s, found, healthy):
        """Ranks without an end have died if the newest event is more than a minute old."""
        report = attrs.evolve(alive(healthy, 10.0, 10.0, stepped_s=9.9), age_s=age_s)
        assert len(RULES["died"](report)[0]) == found

    @pytest.mark.parametrize(
        ("interval_s", "behind_s", "found"), [(0.5, 3.0, 0), (0.5, 3.1, 1), (2.0, 6.0, 0), (2.0, 6.1, 1)]
    )
    def test_others_later(self, interval_s, behind_s, found, healthy):
        """A rank has died if another was heard of more than three heartbeats later, and more than three seconds."""
        report = alive(healthy, 20.0, 20.0 - behind_s, stepped_s=12.0)
        rows = tuple(attrs.evolve(row, interval_s=interval_s) for row in report.ranks)
        assert [one.rank for one in RULES["died"](attrs.evolve(report, ranks=rows))[0]] == [1] * found

    @pytest.mark.parametrize(("apart_s", "named"), [(0.9, None), (1.0, 0)])
    def test_first(self, apart_s, named, healthy):
        """Of two ranks that died the first is named if it was silent a second before the other."""
        report = alive(healthy, 10.0, 10.0 + apart_s, state="died", stepped_s=9.9)
        assert [one.rank for one in RULES["died"](report)[0]] == [named]

    def test_first_is_not_known(self, healthy):
        """If it cannot be seen which of the ranks died first, it says so, and the step that one of them reached."""
        report = alive(healthy, 10.0, 10.0, state="died", stepped_s=9.9)
        rows = (report.ranks[0], attrs.evolve(report.ranks[1], last_step=11))
        (found,) = RULES["died"](attrs.evolve(report, ranks=rows))[0]
        assert found.title == "All 2 ranks died, after step 11: which one was first cannot be seen."
        assert found.since_step == 11

    def test_raised_in_an_earlier_attempt(self, healthy):
        """A rank that dies in this attempt is among the dead though an exception ended it in an earlier one."""
        report = alive(healthy, 10.0, 10.0, state="died")
        rows = tuple(attrs.evolve(row, last_step=-1, stepped_ns=0) for row in report.ranks)
        errors = (raised_on(1, report.attempts[-1].start_ns - S, "KeyError", "no such key"),)
        (found,) = RULES["died"](attrs.evolve(report, ranks=rows, errors=errors))[0]
        assert found.title == "All 2 ranks died, before their first step: which one was first cannot be seen."

    def test_first_to_exit(self, healthy):
        """Of ranks whose exits were seen the first one is named with its status, though its log is the longer one."""
        report = alive(healthy, 10.0, 9.9, state="died", stepped_s=9.9)
        exits = ((10 * S, -9), (10 * S + 1, -15))
        rows = [
            attrs.evolve(row, exited_ns=report.goodput.start_ns + at_ns, exit_status=status)
            for row, (at_ns, status) in zip(report.ranks, exits, strict=True)
        ]
        (found,) = RULES["died"](attrs.evolve(report, ranks=tuple(rows)))[0]
        assert found.title == "Rank 0 died after step 9 (signal 9), then rank 1: their logs have no end."
        assert (found.rank, found.since_ns) == (0, rows[0].exited_ns)

    def test_died_after_an_exception(self, healthy):
        """A rank without an end may have lived a second longer than its log: an exception in that second is first."""
        report = alive(healthy, 10.0, 9.5, state="died", stepped_s=9.4)
        rows = (attrs.evolve(report.ranks[0], state="ended", error="KeyError"), report.ranks[1])
        at_ns = report.goodput.start_ns + 10 * S
        error = raised_on(0, at_ns, "KeyError", "no such key")
        kinds = [one.kind for one in judge(attrs.evolve(report, ranks=rows, errors=(error,))).findings]
        assert kinds[:2] == ["exception", "died"]

    @pytest.mark.parametrize(
        ("kind", "message", "named"),
        [
            ("RuntimeError", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234", 1),
            ("torch.distributed.DistBackendError", "NCCL error: remote process exited or there was a network error", 1),
            ("torch.distributed.DistNetworkError", "Failed to recv, got 0 bytes. Connection was likely closed.", 1),
            ("ConnectionResetError", "[Errno 104] Connection reset by peer", 0),
            ("requests.exceptions.ReadTimeout", "HTTPSConnectionPool(host='data', port=443): Read timed out.", 0),
            ("RuntimeError", "DataLoader timed out after 5 seconds", 0),
        ],
    )
    def test_lost_peer(self, kind, message, named, healthy):
        """An exception of what joins ranks follows from another rank's, though it came first; a socket's does not."""
        at_ns = healthy.goodput.start_ns + 10 * S
        errors = (raised_on(0, at_ns, kind, message), raised_on(1, at_ns + S, "KeyError", "no such key"))
        (found,) = RULES["raised"](attrs.evolve(alive(healthy, 10.0, 11.0), errors=errors))[0]
        assert found.rank == named

    @pytest.mark.parametrize(("message", "named"), [("Connection closed by peer", [0]), ("no such key", [])])
    def test_left_early(self, message, named, healthy):
        """A rank that ended well is why others lost the connection to it, and not why they raised something else."""
        report = alive(healthy, 10.0, 10.1, stepped_s=9.9)
        left, lost = report.ranks
        rows = (attrs.evolve(left, state="ended", has_good_end=True), attrs.evolve(lost, state="ended", error="Error"))
        error = raised_on(1, lost.last_ns, "RuntimeError", message)
        found = RULES["exit"](attrs.evolve(report, ranks=rows, errors=(error,)))[0]
        assert [one.rank for one in found] == named

    @pytest.mark.parametrize(
        ("usual_s", "silent_s", "found"), [(0.1, 59.9, 0), (0.1, 60.0, 1), (8.0, 79.9, 0), (8.0, 80.0, 1)]
    )
    def test_stopped(self, usual_s, silent_s, found, healthy):
        """Steps have stopped after a minute without one, or after ten usual ones if that is longer."""
        report = alive(healthy, 10.0 + silent_s, 10.0 + silent_s, stepped_s=10.0)
        report = attrs.evolve(report, step_time=StepQuantiles(usual_s, usual_s, usual_s, rank=0))
        assert len(RULES["stopped"](report)[0]) == found

    @pytest.mark.parametrize("is_over", [False, True])
    def test_stall(self, is_over, healthy):
        """A stall is one that steps came after; one that none did makes the job a stopped one, however short it is."""
        times = {"at_ns": healthy.goodput.start_ns, "usual_s": 0.1, "lasted_s": 30.0, "is_over": is_over}
        place = {"rank": 0, "attempt": healthy.ranks[0].attempt, "step": 9, "span": "", "where": ""}
        stall = StallRow(**place, **times, waits=False, collective="")
        report = attrs.evolve(alive(healthy, 40.0, 40.0, stepped_s=10.0), stalls=(stall,))
        costs = [one.cost_s for one in RULES["stall"](report)[0]]
        assert (costs, len(RULES["stopped"](report)[0])) == ([pytest.approx(29.9)] * is_over, not is_over)

    @pytest.mark.parametrize(
        ("changes", "is_every_rank", "kinds"),
        [
            ({}, False, ["pauses"]),
            ({"step": 27}, False, ["stall", "pauses"]),  # the step after it is none in which a rank paused
            ({"lasted_s": 171.0}, False, ["stall", "pauses"]),  # twice 85 s are 170 s
            ({"attempt": 7}, False, ["stall", "pauses"]),
            ({}, True, ["stall", "pauses"]),
        ],
    )
    def test_stall_in_pause(self, stalled_in_pause, changes, is_every_rank, kinds):
        """A stall of the others while a rank pauses is no second finding: its step is one in which a rank paused."""
        report = stalled_in_pause(changes, is_every_rank=is_every_rank)
        found = [one for rule in ("stall", "pauses") for one in RULES[rule](report)[0]]
        assert [one.kind for one in found] == kinds
        assert ("rank 0 is in meet" in found[-1].evidence) is (kinds == ["pauses"])

    def test_stall_in_a_pause_that_is_no_finding(self, stalled_in_pause):
        """A pause that costs too little for a finding hides no stall."""
        report = stalled_in_pause(cost_s=0.0)
        assert [len(RULES[rule](report)[0]) for rule in ("stall", "pauses")] == [1, 0]

    @pytest.fixture
    def stalled_in_pause(self, healthy):
        """Give a function that returns a report in which rank 0 stood still while a rank paused for 85 s in step 29."""

        def report(changes=None, *, is_every_rank=False, cost_s=85.0):
            place = {"rank": 0, "attempt": healthy.ranks[0].attempt, "step": 28, "span": "", "where": "meet"}
            times = {"at_ns": healthy.goodput.start_ns, "usual_s": 0.1, "lasted_s": 80.0, "is_over": True}
            stall = attrs.evolve(StallRow(**place, **times, waits=True, collective=""), **(changes or {}))
            pausing = paused(healthy, cost_s)
            pause = attrs.evolve(pausing.pauses, length_ns=85e9, is_every_rank=is_every_rank)
            return attrs.evolve(pausing, stalls=(stall,), pauses=pause)

        return report

    @pytest.mark.parametrize(("status", "found"), [(None, 0), (0, 0), (1, 1), (-9, 1)])
    def test_exit(self, status, found, healthy):
        """A program has failed if its exit status is known and not zero."""
        assert len(RULES["exit"](attrs.evolve(healthy, exit_status=status))[0]) == found

    @pytest.mark.parametrize(("missing", "found"), [((), 0), ((1,), 1)])
    def test_missing(self, missing, found, healthy):
        """One rank without a log is enough."""
        assert len(RULES["missing-rank"](attrs.evolve(healthy, missing_ranks=missing))[0]) == found

    def test_not_finite(self, healthy):
        """One loss that is not finite is enough, and the ranks that had it in that step are named before the others."""
        where = {"name": "", "steps": (7, 7), "step": 7, "last_step": 9, "at_ns": healthy.goodput.start_ns}
        counts = {"count": 3, "earlier": 0, "finite_after": 0}
        ranks = {"ranks": (0, 1), "first_rank": 1, "first_ranks": (1,)}
        one = NotFinite(value="nan", **where, **counts, **ranks)
        (found,) = RULES["not-finite"](attrs.evolve(healthy, not_finite=one))[0]
        assert (found.since_step, found.rank) == (7, 1)
        assert found.title == "The loss is NaN since step 7, on rank 1, and later on rank 0."


class TestSummary:
    @pytest.mark.parametrize(
        ("ranks", "waits_in", "more", "is_said"),
        [
            (2, (), (), True),
            (2, ("model_backward",), (), True),
            (2, ("model_forward",), (), False),
            (2, (gap("model_backward", "optimizer_update"),), (), False),
            (2, (), (Part(name="gradient_synchronization", kind="waiting", mean_ns=1e6, share=0.01),), False),
            (1, (), (), False),
        ],
    )
    def test_wait_in_backward(self, ranks, waits_in, more, is_said, healthy):
        """The backward pass of several ranks may hold their wait if nothing shows that they wait elsewhere."""
        backward = Part(name="model_backward", kind="compute", mean_ns=9e7, share=0.9)
        what_if = attrs.evolve(healthy.what_if, ranks=ranks, waits_in=waits_in)
        report = attrs.evolve(healthy, parts=(backward, *more), what_if=what_if, ranks_total=ranks)
        summary = judge(report).summary
        assert ("model_backward may hold the wait for the other ranks too" in summary) is is_said

    @pytest.mark.parametrize(
        ("waited_ms", "saved_s", "bound"),
        [
            (29, 0.0, "the exchange between ranks: 60 %"),
            (30, 0.0, "waiting for others: 60 %"),
            (0, 2.9, "the exchange between ranks: 60 %"),
            (0, 3.1, "waiting for others: 60 %"),
        ],
    )
    def test_waiting(self, waited_ms, saved_s, bound, healthy):
        """Of 100 steps of 100 ms, with 60 ms of waiting, half must be for the last rank, in a step or in its saves."""
        parts = [Part(name="all_reduce", kind="waiting", mean_ns=6e7, share=0.6)]
        parts.append(Part(name="model_forward", kind="compute", mean_ns=4e7, share=0.4))
        saves = {"kind": "checkpoint", "rank": 0, "count": 2, "took_s": saved_s, "longest_s": saved_s / 2}
        steps = Bin(count=100, total=1e10)
        report = attrs.evolve(
            healthy,
            parts=tuple(parts),
            steps=((0, steps),),
            ranks_total=1,
            missing_ranks=(),
            what_if=attrs.evolve(healthy.what_if, waited_ns=waited_ms * 1e6),
            standstills=(Standstill(**saves, longest_step=50, since_ns=0, least_s=0.0),),
        )
        assert f"Steps are bound by {bound} of one is all_reduce." in judge(report).summary

    @pytest.mark.parametrize(
        ("open_s", "said"), [(4.9, "."), (5.0, ", 5 s of them into step 60, which has not ended.")]
    )
    def test_open_step(self, open_s, said, healthy):
        """Productive time of a step that did not end, as in a hang, is said to be such from 5 % of all 100 s on."""
        times = attrs.evolve(healthy.goodput.step_time, open_step=60, open_s=open_s)
        goodput = attrs.evolve(healthy.goodput, elapsed_s=100.0, productive_s=90.0, step_time=times)
        summary = judge(attrs.evolve(healthy, goodput=goodput)).summary
        assert f"1.5 min of 1.67 min went into steps that count{said} " in summary

    @pytest.mark.parametrize(("waited_ms", "is_said"), [(29, False), (30, True)])
    def test_last_in_turn(self, waited_ms, is_said, healthy):
        """Waiting for the rank that comes last is in the summary from 30 % of a step on, if none is late."""
        parts = (Part(name="all_reduce", kind="waiting", mean_ns=1e8, share=1.0),)
        what_if = attrs.evolve(healthy.what_if, waited_ns=waited_ms * 1e6)
        report = attrs.evolve(healthy, parts=parts, what_if=what_if, late=(), pauses=None)
        for is_late, one in ((False, report), (True, late(report, 1.0))):
            summary = judge(one).summary
            assert ("30 % of a step is waiting for the rank that comes last" in summary) is (is_said and not is_late)


class TestRegression:
    @pytest.mark.parametrize(
        ("change", "low", "high", "found"),
        [
            (0.009, 0.008, 0.010, 0),
            (0.010, 0.008, 0.012, 1),
            (0.050, 0.000, 0.100, 0),
            (0.050, 0.001, 0.099, 1),
            (-0.05, -0.06, -0.04, 0),
        ],
    )
    def test_edges(self, change, low, high, found, healthy):
        """Steps are a regression from 1 % on, if the bounds of chance hold no zero; what is faster never is."""
        baseline = Difference(before=1e8, after=1e8 * (1 + change), change=change, low=low, high=high)
        findings = RULES["regression"](attrs.evolve(healthy, baseline=baseline))[0]
        # The cost is the excess: of steps that are 5 % longer 5/105.
        cost_s = healthy.goodput.productive_s * change / (1 + change)
        assert [one.cost_s for one in findings] == [pytest.approx(cost_s)] * found


class TestMemoryGrowth:
    @pytest.mark.parametrize(
        ("quarters", "found"),
        [
            ((1000, 1033, 1066, 1099), 0),  # 9.9 % in all
            ((1000, 1033, 1066, 1100), 1),
            ((1000, 1200, 1200, 1300), 0),  # nothing in the third
            ((1000, 1200, 1201, 1300), 1),
            ((1000, 1300, 1501, 1600), 0),  # 99 in the last quarter, of 600: less than a sixth
            ((1000, 1300, 1500, 1600), 1),
        ],
    )
    def test_edges(self, quarters, found):
        """Memory grows if it rose by a tenth, in each quarter, and in the last one by a sixth of it all."""
        assert len(find_rises([self.process(quarters)])) == found

    @pytest.mark.parametrize(("count", "found"), [(15, 0), (16, 1)])
    def test_fewest(self, count, found):
        """Sixteen values are the fewest to say so of, without the quarter in which a job warms up."""
        assert len(find_rises([self.process((1000, 1100, 1200, 1300), count=count)])) == found

    def process(self, quarters, count=16):
        """Return a process whose memory has these values in quarters of *count* ones, behind five of warming up."""
        process = Watched(Source(id="0" * 16, run_id="run"))
        trace = process.memory.setdefault("memory", Trace())
        values = [1] * 5 + [quarters[min(3, at // (count // 4))] for at in range(count)]
        for at, value in enumerate(values):
            trace.add(at * S, float(value))
        return process


class TestExplained:
    def test_tags(self):
        """A rule names the tags of its findings, each once, so that a finding leads to its rule."""
        kinds = ("straggler", "input-bound", "straggler")
        found = tuple(Finding(kind=kind, title="", evidence=(), look="") for kind in kinds)
        rulings = [Ruling(rule="stragglers", findings=found, because="late"), Ruling(rule="died", because="no")]
        assert explained(rulings) == ["stragglers  found    [straggler] [input-bound] late", "died        nothing  no"]
