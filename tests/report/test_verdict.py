"""The verdict on generated jobs: right where there is a cause, silent where there is none."""

from __future__ import annotations

import re

import attrs
import pytest

from framing import write_log
from processes import Process
from trackside.events import (
    ControlUsed,
    Heartbeat,
    IterationEnded,
    ProcessExited,
    ProfileSpanEnded,
    Source,
    SourceEnded,
    SpanEnded,
    StallDetected,
)
from trackside.handlers.models.steps import StepTimer
from trackside.report import read_report
from trackside.report._build import _waited_share
from trackside.report._plain_text import report_lines
from trackside.report._report import Part
from trackside.report._verdict_rules import _uneven, waited_words
from trackside.report._whatif import (
    StepRecord,
    StepTiles,
    WhatIf,
    chosen_tiles,
    compare_ranks,
    find_pause,
    gap,
    kind_of,
)
from windows import section_window

pytestmark = pytest.mark.once

S = 10**9
MS = 10**6
START_NS = 1_700_000_000 * S


def slower(ranks, part, since, by):
    """Return a function that makes a part of the step longer on some ranks from some step on."""
    return lambda rank, step, own: by if own == part and step >= since and (ranks == "all" or rank in ranks) else 1.0


def throttled(rank, step, part):
    """Let all compute 30 % longer from step 180 on."""
    return 1.3 if step >= 180 and part in {"model_forward", "model_backward"} else 1.0


def late_data(rank, step, part):
    """Let rank 1 wait 20 ms longer for its data of 6 ms from step 150 on."""
    return 26 / 6 if rank == 1 and part == "data_loading" and step >= 150 else 1.0


def late_data_from_200(rank, step, part):
    """Let rank 1 wait 20 ms longer for its data of 2 ms from step 200 on."""
    return 11.0 if rank == 1 and part == "data_loading" and step >= 200 else 1.0


def two_on_a_host(rank, step, part):
    """Let ranks 4 and 5, of node2, compute longer."""
    return 1.6 if rank in {4, 5} and part != "all_reduce" else 1.0


# The fault of the job; then the kind of the first finding, its rank, its section, and since which step.
CAUSES = {
    "one rank": (
        {"factor": slower({2}, "model_backward", 100, 1.8)},
        ("straggler", 2, "model_backward", 100),
    ),
    "one host": ({"ranks": 8, "factor": two_on_a_host}, ("straggler", 4, "model_backward", 0)),
    "input": ({"loading_s": 0.08}, ("input-bound", None, "data_loading", None)),
    "input of one rank": (
        {"factor": slower({3}, "data_loading", 0, 40)},
        ("input-bound", 3, "data_loading", 0),
    ),
    "input from some step on": (
        {"factor": slower("all", "data_loading", 150, 20)},
        ("input-bound", None, "data_loading", 150),
    ),
    "throttled": ({"factor": throttled}, ("compute-bound", None, "model_backward", 180)),
    "network": ({"reduce_s": 0.15}, ("waiting", None, "all_reduce", None)),
    "network from some step on": (
        {"factor": slower("all", "all_reduce", 120, 6)},
        ("waiting", None, "all_reduce", 120),
    ),
    "checkpoints": ({"save_every": 20, "save_s": 1.5}, ("checkpoints", None, "", None)),
    "work lost": ({"killed_at": (195, 295), "recovery_s": 0.1}, ("restarts", 1, "", 194)),
    "slow recovery": ({"killed_at": (201,), "recovery_s": 30}, ("restarts", 1, "", 200)),
    "memory": (
        {"memory": lambda rank, step: 8e9 + (3e7 * step if rank == 1 else 0)},
        ("memory-growth", 1, "process.memory.usage", None),
    ),
    "hang": ({"hangs_s": 600}, ("stopped", 2, "save_to_bucket", 299)),
    "validation": ({"validate_every": 50, "validation_s": 3}, ("evaluation", None, "", None)),
    "between steps": ({"between_s": 0.1}, ("unaccounted", None, "", None)),
}

HEALTHY = {
    "usual": {},
    "one rank": {"ranks": 1, "steps": 200, "seed": 3},
    "noisy": {"ranks": 8, "noise": 0.15, "stumbles": 0.02, "save_s": 0.2, "seed": 5},
    "memory that levels off": {"memory": lambda rank, step: 8e9 + 4e9 * min(step, 60) / 60},
}


@pytest.fixture(scope="module")
def of_cause(tmp_path_factory, make_job):
    """Give a function that returns the findings of the job with a cause; each is made once."""
    known = {}

    def judge(name):
        if name not in known:
            directory = make_job(**CAUSES[name][0]).write(tmp_path_factory.mktemp("job"))
            known[name] = read_report(directory).verdict.findings
        return known[name]

    return judge


@pytest.fixture
def findings(made_up):
    """Give a function that returns the findings on a generated job."""

    def judge(**job):
        return read_report(made_up(**job)).verdict.findings

    return judge


class TestCauses:
    @pytest.mark.parametrize("name", CAUSES)
    def test_is_found(self, name, of_cause):
        """The fault comes first: the kind, the rank, the section, and since when, to a tenth of all steps."""
        kind, rank, section, since = CAUSES[name][1]
        first = of_cause(name)[0]
        assert (first.kind, first.rank, first.section) == (kind, rank, section)
        assert first.since_step == since or abs(first.since_step - since) <= 30

    @pytest.mark.parametrize("name", CAUSES)
    def test_is_the_only_one(self, name, of_cause):
        """One cause makes one finding: its consequences are no findings of their own."""
        assert len(of_cause(name)) == 1

    def test_cost(self, of_cause):
        """The cost of a straggler is the excess of the steps: 200 of them, 0.8 × 60 ms each."""
        (found,) = of_cause("one rank")
        assert found.cost_s == pytest.approx(200 * 0.8 * 0.06, rel=0.05)

    def test_cost_of_restarts(self, findings):
        """The cost of a restart is the steps done again, the time until the job was back, and its start."""
        (found,) = findings(killed_at=(201,), recovery_s=30, stumbles=0, noise=0)
        # One step of 0.11 s again, 30 s to come back, 0.5 s to make the model, 0.25 s to load the checkpoint.
        assert found.cost_s == pytest.approx(0.11 + 30 + 0.5 + 0.25, abs=0.05)

    def test_longest_save(self, findings):
        """
        The longest save, the first of equal ones, is named with the step that it saved: it lies between two steps.
        """
        (found,) = findings(save_every=20, save_s=1.5)
        assert found.evidence == ("15 saves of 1.5 s on average, the longest 1.5 s at step 19",)

    def test_start_of_each_attempt(self, made_up):
        """
        Time without a span before the first step of an attempt has a name, and a restart costs its own part of it.
        """
        report = read_report(made_up(killed_at=(201,), imports_s=4, recovery_s=2, stumbles=0, noise=0))
        assert [bar.buckets_s["BEFORE_FIRST_STEP"] for bar in report.attempts] == pytest.approx([4, 4], abs=0.01)
        (found,) = [one for one in report.verdict.findings if one.kind == "restarts"]
        # One step of 0.11 s again, 2 s to come back, 4 s of imports, 0.5 s to make the model, 0.25 s to load.
        assert found.cost_s == pytest.approx(0.11 + 2 + 4 + 0.5 + 0.25, abs=0.05)

    def test_start_of_an_attempt_without_steps(self, made_up):
        """An attempt that is killed before its first step spent all of its time on starting up."""
        report = read_report(made_up(killed_at=(200, 200), imports_s=40, recovery_s=2, stumbles=0, noise=0))
        # The others lived 1 s longer than rank 1, which was killed after its imports, its model and its checkpoint.
        assert [bar.buckets_s["BEFORE_FIRST_STEP"] for bar in report.attempts] == pytest.approx([40, 41, 40], abs=0.01)
        assert [one.kind for one in report.verdict.findings] == ["restarts", "startup"]

    def test_odd_one(self, of_cause):
        """In a hang the rank that is elsewhere is named, and its position."""
        (found,) = of_cause("hang")
        assert any("rank 2 is in save_to_bucket, for 10 min" in line for line in found.evidence)

    def test_two_causes(self, findings):
        """Of two causes the one with the higher cost comes first."""
        found = findings(save_every=20, save_s=1.5, loading_s=0.03)
        assert [one.kind for one in found] == ["checkpoints", "input-bound"]


class TestRegression:
    def test_is_found(self, made_up):
        """Steps that take 2.7 % longer than the baseline's are reported: 3 ms of 110 ms."""
        before = made_up("before", run_id="before", session_tag="before")
        after = made_up("after", forward_s=0.043, seed=2)
        (found,) = read_report(after, baseline=[before]).verdict.findings
        assert found.kind == "regression"

    def test_is_not_made_up(self, made_up):
        """The same job again is no regression."""
        before = made_up("before", run_id="before", session_tag="before")
        assert read_report(made_up("after", seed=2), baseline=[before]).verdict.findings == ()


class TestHealthy:
    @pytest.mark.parametrize("name", HEALTHY)
    def test_silence(self, name, made_up):
        """Without a fault there is no finding."""
        verdict = read_report(made_up(**HEALTHY[name])).verdict
        assert (verdict.headline, verdict.findings) == ("Nothing stands out.", ())

    def test_bound(self, made_up):
        """The largest part of a step is named all the same."""
        assert read_report(made_up()).verdict.bound == "compute"


class TestAttempts:
    @pytest.fixture
    def late_in_two_attempts(self, made_up):
        """Give the report of a job killed at step 250, whose rank 1 waits 20 ms longer for data from step 150 on."""
        return read_report(made_up(ranks=2, loading_s=0.006, killed_at=(250,), factor=late_data))

    def test_since(self, late_in_two_attempts):
        """
        A cause that began at step 150 of the first attempt, and went on in the second one from step 200, began at 150.
        """
        (found,) = [one for one in late_in_two_attempts.verdict.findings if one.kind == "input-bound"]
        assert (found.rank, found.since_step, found.until_step) == (1, 150, None)

    def test_cost(self, late_in_two_attempts):
        """It costs 20 ms in 200 steps: 150 to 249 of the first attempt, and 200 to 299 of the second one."""
        (found,) = [one for one in late_in_two_attempts.verdict.findings if one.kind == "input-bound"]
        assert found.cost_s == pytest.approx(4.0, rel=0.05)

    def test_soon_killed(self, findings):
        """A rank that was killed four steps after it became slow was slow since then."""
        found = findings(ranks=2, killed_at=(204,), factor=late_data_from_200)
        (found,) = [one for one in found if one.kind == "input-bound"]
        assert found.since_step == 200


class TestInput:
    def test_two_causes(self, findings):
        """If all ranks wait 40 ms for data and one 50 ms longer, these are two findings; no second is in both."""
        found = findings(ranks=4, loading_s=0.04, factor=slower({2}, "data_loading", 0, 2.25))
        assert [(one.kind, one.rank) for one in found] == [("input-bound", 2), ("input-bound", None)]
        # 300 steps of 40 ms; the first step is the start's, and one rank waits 50 ms beyond that.
        assert found[0].cost_s == pytest.approx(300 * 0.05, rel=0.05)
        assert found[1].cost_s == pytest.approx(300 * 0.04, rel=0.05)

    def test_last_in_line(self, findings):
        """If all ranks wait long for data, the one that waits longest may be no slower: no rank is accused."""
        (found,) = findings(ranks=4, loading_s=0.04, factor=slower({2}, "data_loading", 0, 1.75))
        assert (found.kind, found.rank) == ("input-bound", None)
        assert found.cost_s == pytest.approx(300 * 0.04 * 1.75, rel=0.05)
        (line,) = [line for line in found.evidence if line.startswith("rank 2 waits longest")]
        assert float(line.split()[4]) == pytest.approx(1.75, abs=0.06)

    def test_last_in_line_of_many(self, made_up):
        """If 7 of 8 ranks wait 180 ms of a step for one that waits for its data, it is not another one each time."""
        factor = slower({2}, "data_loading", 0, 1.9)
        verdict = read_report(made_up(ranks=8, steps=100, loading_s=0.2, factor=factor)).verdict
        assert [(one.kind, one.rank) for one in verdict.findings] == [("input-bound", None)]
        assert "from step to step" not in verdict.summary


LOADER = "/job/train.py:10 in main\n/job/train.py:42 in next_batch\n/usr/lib/python3.11/queue.py:171 in get"
EXCHANGE = (
    "/job/train.py:10 in main\n/x/site-packages/torch/_tensor.py:581 in backward\n"
    "/x/site-packages/torch/autograd/graph.py:825 in _engine_run_backward"
)


class TestLimited:
    @pytest.mark.parametrize(
        ("said", "limited_s"),
        [
            ([(5, "pause", {}), (9, "resume", {})], {"pause": 4.0}),
            ([(5, "pause", {"seconds": 3})], {"pause": 3.0}),
            ([(5, "sample", {"every": 9}), (6, "pause", {}), (9, "status", {})], {"pause": 4.0, "sample": 1.0}),
        ],
    )
    def test_said(self, tmp_path, write_events, said, limited_s):
        """
        The report says for how long `trackside ctl` had less recorded, and does not call that time unknown.

        The steps are of 100 ms, from second 0 to 10; those from second 5 to 9 are in no log.
        """
        steps = [step for step in range(100) if not 50 <= step < 90]
        events = [
            IterationEnded(at_ns=START_NS + (step + 1) * S // 10, step=step, span_id=step + 1, duration_ns=S // 10)
            for step in steps
        ]
        events += [
            ControlUsed(at_ns=START_NS + at_s * S, step=-1, span_id=0, verb=verb, arguments=arguments)
            for at_s, verb, arguments in said
        ]
        events.append(SourceEnded(at_ns=START_NS + 10 * S, step=-1, span_id=0, reason="closed"))
        write_events(tmp_path, Source(id="0001", run_id="run"), sorted(events, key=lambda event: event.at_ns))
        report = read_report(tmp_path)
        assert report.losses.limited_s == limited_s
        assert [one.kind for one in report.verdict.findings if one.kind == "unaccounted"] == []
        lines = ["".join(text for text, _ in line) for line in report_lines(report, 120)]
        assert [line for line in lines if "trackside ctl pause" in line] == [
            f"  nothing but lifecycle events was recorded for {limited_s['pause']:g} s: trackside ctl pause"
        ]


class TestStall:
    @pytest.fixture
    def stalled(self, tmp_path, write_events):
        """Give a function that writes two ranks of which rank 1 hangs in its loader, and returns the finding."""

        def run(*, goes_on):
            for rank, (stack, span) in enumerate(((EXCHANGE, "model_backward"), (LOADER, "data_loading"))):
                source = Source(id=f"000{rank}", run_id="run", rank=rank, world_size=2, pid=100 + rank)
                events = [
                    IterationEnded(at_ns=START_NS + step * S // 10, step=step, span_id=step + 1, duration_ns=S // 10)
                    for step in range(1, 51)
                ]
                at_ns = START_NS + 5 * S + 60 * S
                events.append(
                    StallDetected(
                        at_ns=at_ns,
                        span_id=0,
                        step=50,
                        stalled_s=60.0,
                        usual_s=0.1,
                        stacks={"MainThread": stack},
                        open_spans={"MainThread": [7, span, at_ns - 60 * S]},
                    )
                )
                if goes_on:
                    events.append(IterationEnded(at_ns=at_ns + 20 * S, step=51, span_id=99, duration_ns=80 * S))
                    events.append(SourceEnded(at_ns=at_ns + 21 * S, step=-1, span_id=0, reason="closed"))
                else:
                    events.append(Heartbeat(at_ns=at_ns + 20 * S, step=-1, span_id=0, sequence=1))
                write_events(tmp_path, source, events)
            return read_report(tmp_path).verdict.findings[0]

        return run

    def test_still(self, stalled):
        """A lasting stall names the rank that does not wait for the others, and its position."""
        found = stalled(goes_on=False)
        assert (found.kind, found.rank, found.section, found.since_step) == ("stopped", 1, "data_loading", 50)
        assert found.title == (
            "No step has ended for 1.33 min, since step 50; half of them on rank 0 took less than 100 ms: "
            "rank 1 is in get, called by next_batch (train.py:42)."
        )
        assert "rank 1 is in data_loading, get, called by next_batch (train.py:42)" in found.evidence
        assert "rank 0 is in model_backward, _engine_run_backward, called by main (train.py:10)" in found.evidence

    def test_over(self, stalled):
        """
        The cost of a stall that a step ended is that step's time beyond the usual: 80 s from step to step, less 0.1 s.
        """
        found = stalled(goes_on=True)
        assert (found.kind, found.rank, found.since_step, found.until_step) == ("stall", 1, 50, 51)
        assert found.cost_s == pytest.approx(79.9)


class TestBeside:
    """Findings and goodput's buckets agree about the same time."""

    def test_waited(self, made_up):
        """A rank slower by 20 ms in 300 steps has the other ones wait for 6 s, which are in steps and so productive."""

        def factor(rank, _step, part):
            return 1.5 if (rank, part) == (1, "model_forward") else 1.0

        report = read_report(made_up(factor=factor, noise=0.01, stumbles=0))
        assert waited_words(report) in " ".join("".join(text for text, _ in line) for line in report_lines(report, 300))
        found = re.fullmatch(r"(.*) s of productive time were spent waiting for rank 1\.", waited_words(report))
        assert float(found[1]) == pytest.approx(6.0, rel=0.05)

    def test_last_in_turn(self, made_up):
        """If each of three ranks is 120 ms slower in every third step, two wait for it: 80 ms of 230 ms on average."""

        def factor(rank, step, part):
            return 4.0 if part == "model_forward" and rank == step % 3 else 1.0

        report = read_report(made_up(ranks=3, factor=factor, noise=0, stumbles=0))
        assert "35 % of a step is waiting for the rank that comes last, and none" in report.verdict.summary

    def test_waited_after_an_earlier_start(self, made_up):
        """A late rank that began 2 s before the others has them wait no less in their steps, which are its own."""
        report = read_report(made_up(factor=slower({1}, "model_forward", 0, 1.5), noise=0.01, stumbles=0))
        ranks = [attrs.evolve(one, elapsed_s=one.elapsed_s + 2 * (one.rank == 1)) for one in report.goodput.ranks]
        earlier = attrs.evolve(report, goodput=attrs.evolve(report.goodput, ranks=tuple(ranks)))
        assert waited_words(earlier) == waited_words(report) != ""

    def test_waited_outside(self, made_up):
        """Nobody waits for a rank in productive time if it is late by loading: the account has that as loading."""

        def factor(rank, _step, part):
            return 11.0 if (rank, part) == (1, "data_loading") else 1.0

        report = read_report(made_up(factor=factor, noise=0.01, stumbles=0))
        assert report.verdict.findings[0].kind == "input-bound"
        assert waited_words(report) == ""

    @pytest.fixture
    def apart(self, tmp_path, write_events):
        """Give a function that reports on two ranks that never wait: a step is loading and forward, in ms by rank."""

        def run(*ranks):
            for rank, parts in enumerate(ranks):
                at_ns, events = START_NS, []
                for number in range(100):
                    own = {"step": number, "parent_span_id": 10 * number + 1}
                    for part, (name, took_ms) in enumerate(zip(("data_loading", "model_forward"), parts, strict=True)):
                        at_ns += took_ms * MS
                        given = {"span_id": 10 * number + 2 + part, "name": name, "duration_ns": took_ms * MS, **own}
                        events.append(ProfileSpanEnded(at_ns=at_ns, **given))
                    step_ns = sum(parts) * MS
                    ended = IterationEnded(at_ns=at_ns, step=number, span_id=10 * number + 1, duration_ns=step_ns)
                    events.append(ended)
                events.append(SourceEnded(at_ns=at_ns, step=-1, span_id=0, reason="closed"))
                write_events(tmp_path, Source(id=f"000{rank}", run_id="run", rank=rank, world_size=2), events)
            return read_report(tmp_path)

        return run

    def test_nobody_waited(self, apart):
        """If a rank loads for long and no other one waits for it, no productive time went into waiting."""
        report = apart((1, 9), (11, 9))
        assert (report.verdict.findings[0].kind, report.verdict.findings[0].rank) == ("input-bound", 1)
        assert waited_words(report) == ""

    def test_nobody_waited_in_steps(self, apart):
        """Nor did any if it computes for long: nothing says that the others wait for it."""
        report = apart((1, 9), (1, 39))
        assert (report.verdict.findings[0].kind, report.verdict.findings[0].rank) == ("straggler", 1)
        assert waited_words(report) == ""

    def test_whose_steps(self, apart):
        """The usual step of ranks that do not wait for each other is said to be that of one rank."""
        report = apart((1, 9), (1, 39))
        assert "Half of the steps on rank 0 took less than 10 ms." in report.verdict.summary
        text = "\n".join("".join(text for text, _ in line) for line in report_lines(report, 300))
        assert "p99 10 ms on rank 0; the longest 40 ms: step 0 on rank 1" in text

    def test_named_otherwise(self, made_up):
        """Loading in a span of another name is charged whole, once, and the finding says why goodput has it not."""
        report = read_report(made_up(fetch_s=0.1, loading_s=0.0, noise=0.01, stumbles=0))
        found = next(one for one in report.verdict.findings if one.kind == "input-bound")
        # 100 ms in each of 300 steps.
        assert (found.section, found.cost_s) == ("fetch", pytest.approx(30.0, rel=0.01))
        assert any("goodput has it as unaccounted" in text for text in found.evidence)
        assert "unaccounted" not in {one.kind for one in report.verdict.findings}

    def test_named_otherwise_in_steps(self, tmp_path, write_events):
        """Loading within steps, in a span of another name, is productive time to goodput, and the finding says so."""
        process = Process(rank=0, world_size=1, at_ns=START_NS)
        for step in range(100):
            began_ns, span_id = process.at_ns, next(process.ids)
            process.spend("fetch_batch", 30 * MS, parent=span_id, step=step)
            process.spend("model_forward", 20 * MS, parent=span_id, step=step)
            process.add(IterationEnded, step=step, span_id=span_id, duration_ns=process.at_ns - began_ns)
        process.add(SourceEnded, reason="closed")
        write_events(tmp_path, process.source, process.events)
        (found,) = read_report(tmp_path).verdict.findings
        assert (found.kind, found.section) == ("input-bound", "fetch_batch")
        assert any("goodput has it as productive" in text for text in found.evidence)


class TestUneven:
    def test_named(self, made_up):
        """If one rank takes ten times as long over loading as the others, no advice speaks of all ranks alike."""
        report = read_report(
            made_up(factor=lambda rank, _step, part: 10.0 if (rank, part) == (2, "data_loading") else 1.0)
        )
        assert _uneven(report) == ("data_loading", 2, pytest.approx(10, rel=0.1))

    def test_one_faster(self, made_up):
        """If one rank takes a tenth of the others' time over loading, none of the others stands out among them."""
        report = read_report(
            made_up(factor=lambda rank, _step, part: 0.1 if (rank, part) == (2, "data_loading") else 1.0)
        )
        assert _uneven(report) is None

    def test_input_of_one_rank(self, findings):
        """If noise hides that a rank is late, the finding still names the one that waits for its data."""

        def factor(rank, _step, part):
            return 6.0 if (rank, part) == (1, "data_loading") else 1.0

        (found,) = findings(ranks=2, steps=25, factor=factor, loading_s=0.01, noise=0.9, stumbles=0)
        assert (found.kind, found.rank, found.section) == ("input-bound", 1, "data_loading")
        assert found.title.startswith("Rank 1 waits for its input: ")

    def test_input_of_all_too(self, findings):
        """If all wait long for their data and one rank three times as long, that rank is named once, for its excess."""

        def factor(rank, _step, part):
            return 3.0 if (rank, part) == (1, "data_loading") else 1.0

        first, second = findings(ranks=2, factor=factor, loading_s=0.03, noise=0.01, stumbles=0)
        assert (first.kind, first.rank) == ("input-bound", 1)
        assert (second.kind, second.rank) == ("input-bound", None)
        # 30 ms in each of 300 steps.
        assert second.cost_s == pytest.approx(9.0, rel=0.05)

    def from_windows(self, tmp_path, write_events, waits, slow_ns):
        """
        Return the finding of two ranks of which windows alone show that one got slow, and the other one *waits* for it.

        From step 100 on rank 1 computes for *slow_ns* in place of 10 ms, and its steps take 21 ms.
        """
        for own, late in enumerate(([10e6, 11e6], [slow_ns, 21e6 - slow_ns])):
            source = Source(id=f"000{own}", run_id="run", rank=own, world_size=2)
            events, at_ns = [], START_NS
            for step in range(200):
                took_ns = (11 if step < 100 else 21) * MS
                at_ns += took_ns
                events.append(IterationEnded(at_ns=at_ns, step=step, span_id=step + 1, duration_ns=took_ns))
                if step % 100 == 99:
                    took = late if step > 100 else [10e6, 1e6]
                    times = dict(zip(("forward", waits), took, strict=True))
                    events.append(section_window(times, window=step // 100, steps=100, at_ns=at_ns))
            write_events(tmp_path, source, [*events, SourceEnded(at_ns=at_ns, step=-1, span_id=0, reason="closed")])
        (found,) = read_report(tmp_path).verdict.findings
        assert found.title.split(",")[0] == "Steps take 90.9 % longer since step 100"
        return found

    def test_rank_that_waits(self, tmp_path, write_events):
        """The rank that waits for the one that got slow is not the one to look at."""
        found = self.from_windows(tmp_path, write_events, "all_reduce", 20e6)
        assert (found.kind, found.look.split(":")[0]) == ("waiting", "Rank 1 waits least in all_reduce")

    def test_rank_that_waits_in_its_backward_pass(self, tmp_path, write_events):
        """Nor is it if the part in which it waits has other work, too."""
        found = self.from_windows(tmp_path, write_events, "backward", 20.9e6)
        assert (found.kind, found.look.split(",")[0]) == (
            "slowdown",
            "Look at forward of rank 1 first. backward may hold the wait for other ranks",
        )

    def test_even(self, made_up):
        """Noise of a few percent makes no rank stand out."""
        assert _uneven(read_report(made_up())) is None

    def test_no_parts(self, tmp_path, write_events):
        """Steps of several ranks without a part cannot show which rank is late, and the summary says so."""
        for own in (0, 1):
            source = Source(id=f"000{own}", run_id="run", rank=own, world_size=2)
            events = [
                IterationEnded(at_ns=START_NS + step * S // 10, step=step, span_id=step + 1, duration_ns=S // 10)
                for step in range(1, 51)
            ]
            end = SourceEnded(at_ns=START_NS + 5 * S, step=-1, span_id=0, reason="closed")
            write_events(tmp_path, source, [*events, end])
        assert "No part of a step is measured" in read_report(tmp_path).verdict.summary


class TestDied:
    @pytest.mark.parametrize(("apart_s", "rank"), [(0.4, None), (3.0, 1)])
    def test_first(self, tmp_path, write_events, apart_s, rank):
        """Of two ranks without an end the first is named if it was silent a second before the other one."""
        for own in (0, 1):
            source = Source(id=f"000{own}", run_id="run", rank=own, world_size=2)
            events = [
                IterationEnded(at_ns=START_NS + step * S // 10, step=step, span_id=step + 1, duration_ns=S // 10)
                for step in range(1, 51)
            ]
            last_ns = START_NS + 5 * S + (0 if own else round(apart_s * S))
            write_events(tmp_path, source, [*events, Heartbeat(at_ns=last_ns, step=-1, span_id=0, sequence=1)])
        (found,) = read_report(tmp_path).verdict.findings
        assert (found.kind, found.rank, found.ranks, found.since_step) == ("died", rank, (0, 1), 50)

    @pytest.mark.parametrize(
        ("steps", "lost"),
        # In a second end 11 steps of 100 ms, with those at both of its ends.
        [(50, "its last second, some 11 steps if they took as long as those before, may be in no log"),
         (1, "its last second may be in no log")],
    )  # fmt: skip
    def test_unwritten(self, tmp_path, write_events, steps, lost):
        """The last deeds of a killed rank are bounded by time; its steps are estimated, from two known ones on."""
        events = [
            IterationEnded(at_ns=START_NS + step * S // 10, step=step, span_id=step + 1, duration_ns=S // 10)
            for step in range(steps)
        ]
        write_events(tmp_path, Source(id="0000", run_id="run", rank=0, world_size=1), events)
        (found,) = read_report(tmp_path).verdict.findings
        assert found.evidence[0].endswith(f"after step {steps - 1}; {lost}")

    @pytest.mark.parametrize(("stood_s", "is_said"), [(23, True), (4, False)])
    def test_stood_still(self, tmp_path, write_events, stood_s, is_said):
        """Of ranks that ended no step for long before they died that is said, and not that steps may be missing."""
        for own in (0, 1):
            events = [
                IterationEnded(at_ns=START_NS + step * S // 10, step=step, span_id=step + 1, duration_ns=S // 10)
                for step in range(1, 51)
            ]
            events += [
                Heartbeat(at_ns=START_NS + (5 + after_s) * S, step=-1, span_id=0, sequence=after_s)
                for after_s in range(1, stood_s + 1)
            ]
            write_events(tmp_path, Source(id=f"000{own}", run_id="run", rank=own, world_size=2), events)
        (found,) = [one for one in read_report(tmp_path).verdict.findings if one.kind == "died"]
        said = "no step had ended for 23 s by then; half of them took less than 100 ms: perhaps it hung, and was killed"
        assert (said in found.evidence, "hung" in " ".join(found.evidence)) == (is_said, is_said)
        assert ("its last second, some 11 steps" in found.evidence[0]) is not is_said

    @pytest.mark.parametrize(("lived_s", "is_said"), [(61, True), (59, False)])
    def test_hung_before_its_first_step(self, tmp_path, write_events, lived_s, is_said):
        """Of ranks that lived for more than a minute and recorded no step before they died that is said."""
        for own in (0, 1):
            events = [
                Heartbeat(at_ns=START_NS + at_s * S, step=-1, span_id=0, sequence=at_s) for at_s in range(lived_s + 1)
            ]
            write_events(tmp_path, Source(id=f"000{own}", run_id="run", rank=own, world_size=2), events)
        (found,) = [one for one in read_report(tmp_path).verdict.findings if one.kind == "died"]
        said = "no step was recorded in the 1.02 min since it began: perhaps it hung before its first, and was killed"
        assert (said in found.evidence, "hung" in " ".join(found.evidence)) == (is_said, is_said)

    def test_torn(self, made_up):
        """A rank whose log was cut off, and whose peers went on without it to a good end, is not reported as dead."""
        directory = made_up(ranks=2, steps=3_000)
        path = max(directory.rglob("*rank-00001*.tslog"))
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
        found = read_report(directory).verdict.findings[0]
        assert (found.kind, found.rank) == ("died", 1)
        assert re.fullmatch(
            r"The log of rank 1 breaks off after step \d+(, in \w+)?: it is torn, or the rank died\.", found.title
        )


class TestSteps:
    def test_one_interval(self):
        """Ranks are compared over the intervals that StepTimer gives: 5 ms of loading and step, twice, then 9 ms."""
        record, timer, found = StepRecord(), StepTimer(), []

        def ended(at_ms, step, ms, **fields):
            event = IterationEnded(at_ns=S + at_ms * MS, span_id=0, step=step, duration_ns=ms * MS, **fields)
            found.append((record.iteration_ended(event), timer.iteration_ended(event)))

        def loaded(at_ms, ms):
            event = ProfileSpanEnded(
                at_ns=S + at_ms * MS, span_id=1, parent_span_id=0, step=-1, name="data_loading", duration_ns=ms * MS
            )
            record.span_ended(event)
            timer.span_ended(event)

        loaded(2, 2)
        ended(5, 0, 3)
        loaded(7, 2)
        ended(10, 1, 3)
        ended(15, 2, 4, failed=True)  # it failed: a step of nobody
        ended(30, 8, 9)  # the events of five steps are missing, and how long they took is not known
        assert [own for own, _ in found] == [other for _, other in found]
        assert [own and own.step_ns // MS for own, _ in found] == [5, 5, None, 9]
        tiles = record.tiles
        assert list(tiles.places) == [0, 1, 8]
        assert [sum(column[at] for column in tiles.took.values()) // MS for at in range(3)] == [5, 5, 9]
        assert [one // MS for one in tiles.took["data_loading"]] == [2, 2, 0]

    def test_whose(self, made_up):
        """The quantiles of the step time say whose steps they are: a rank that waits for nobody has other ones."""
        job = made_up(ranks=2, noise=0, stumbles=0)
        line = next(line for line in report_lines(read_report(job), 200) if "p50" in "".join(text for text, _ in line))
        assert "p99 110 ms on rank 0; the longest" in "".join(text for text, _ in line)


class TestTiles:
    def test_waits_for_a_save(self):
        """A rank that waits in a barrier while another one saves neither pauses nor is late; one that does not, is."""
        for saves in (True, False):
            ranks = {rank: StepTiles() for rank in range(2)}
            for rank, tiles in ranks.items():
                at_ns = S
                for step in range(80):
                    pause_ns = 300 * MS * (step % 10 == 9)
                    if saves and rank == 0:
                        tiles.add_part(at_ns, at_ns + pause_ns, "checkpoint_save_sync")
                    begun_ns = at_ns + pause_ns * (saves or rank == 1)
                    tiles.add_part(begun_ns, begun_ns + 4 * MS, "model_forward")
                    tiles.end_step(step, at_ns, begun_ns + 4 * MS)
                    at_ns = begun_ns + 4 * MS
            assert (find_pause(ranks, ()) is None, compare_ranks([ranks]).late == ()) == (saves, saves)

    def test_cost(self):
        """A rank that is late by 10 ms in each of 60 steps costs 0.6 s, and the steps are counted."""
        ranks = {rank: StepTiles() for rank in range(2)}
        for rank, tiles in ranks.items():
            for step in range(100):
                at_ns, late_ns = S + 20 * step * MS, 10 * MS * (step >= 40)
                entered_ns = at_ns + 4 * MS + late_ns * (rank == 1)
                tiles.add_part(at_ns, entered_ns, "model_forward")
                tiles.add_part(entered_ns, at_ns + 5 * MS + late_ns, "gradient_synchronization")
                tiles.end_step(step, at_ns, at_ns + 5 * MS + late_ns)
        (late,) = compare_ranks([ranks]).late
        assert (late.rank, late.since_step, late.steps) == (1, 40, 60)
        assert late.lateness_ns == pytest.approx(10 * MS)
        assert late.lost_s == pytest.approx(0.6)

    @pytest.mark.parametrize(
        ("what_if", "share"),
        [(WhatIf(waits_in=("barrier",), step_ns=100 * MS, exchanged_ns=0.0), 0.0), (WhatIf(), 0.6)],
    )
    def test_wait_for_one_rank(self, what_if, share):
        """A wait that the last rank does not have is no exchange; if ranks could not be compared, it counts as one."""
        barrier = Part(name="barrier", kind="waiting", mean_ns=60 * MS, share=0.6)
        assert _waited_share(what_if, [barrier]) == share

    @pytest.mark.parametrize("around", [{}, {"step": 3960}, {"validate": 9000}])
    def test_nested_sections(self, around):
        """Neither a section around others nor one between the steps is a tile of steps of 40 ms, 100 in a window."""
        records = [StepRecord() for _ in range(2)]
        for record in records:
            for window in range(3):
                took = {"forward": 1800, "backward": 2000, **around}
                took_ns = {name: float(took_ms * MS) for name, took_ms in took.items()}
                record.windows.add_window(window, 100 * window, 100, took_ns, length_ns=4000.0 * MS)
        for tiles in chosen_tiles(records):
            assert {name: list(column) for name, column in tiles.took.items()} == {
                "forward": [1800 * MS] * 3,
                "backward": [2000 * MS] * 3,
                gap("", ""): [200 * MS] * 3,
            }

    @pytest.mark.parametrize("name", ["recv_grad", "forward-recv", "send_activation", "p2p", "backward_send"])
    def test_pipeline(self, name):
        """The stages of a pipeline wait for each other where they receive and send."""
        assert kind_of(name, set()) == "waiting"

    @pytest.mark.parametrize(("apart_s", "late"), [(0.005, [1]), (30.0, [])])
    def test_clocks_apart(self, apart_s, late):
        """A rank behind at each bound by a quarter of a step is late; by more than one, its clock is apart."""
        ranks = {rank: StepTiles() for rank in range(2)}
        for rank, tiles in ranks.items():
            for step in range(100):
                at_ns = S + round(rank * apart_s * S) + 20 * step * MS
                tiles.add_part(at_ns + 2 * MS, at_ns + 8 * MS, "model_forward")
                tiles.add_part(at_ns + 8 * MS, at_ns + 18 * MS, "model_backward")
                tiles.end_step(step, at_ns, at_ns + 20 * MS)
        assert [one.rank for one in compare_ranks([ranks], hosts=("one",)).late] == late

    def test_gap(self):
        """A stretch is not waiting because the part before it is: there a rank can be late."""
        assert kind_of("gradient_synchronization", set()) == "waiting"
        assert kind_of(gap("gradient_synchronization", "optimizer_update"), set()) == "other"

    @pytest.mark.parametrize(("status", "title"), [(0, None), (3, "Exit with status 3 on rank 1 after step 299.")])
    def test_exit_that_was_seen(self, made_up, status, title):
        """A rank that ended well as its log says, and whose process was seen to exit with a failure, is named."""
        logs = made_up(ranks=2)
        exited = ProcessExited(source_id="0000000000000001", exit_status=status, at_ns=START_NS + 60 * S, step=-1)
        write_log(logs, Source(id="c" * 16, run_id="job", session_tag="made-up", role="collector"), [exited])
        found = [one for one in read_report(logs).verdict.findings if one.kind in {"exception", "exit"}]
        assert [(one.title, one.rank, one.since_step) for one in found] == ([(title, 1, 299)] if title else [])

    @pytest.mark.parametrize(("save_s", "rank"), [({0: 0.1, 1: 1.2}, 1), ({0: 1.2}, 0), ({0: 1.2, 1: 1.0}, None)])
    def test_saves_of_one_rank(self, save_s, rank, tmp_path):
        """The rank that saves twice as long as another one is named; ranks that all save for long are not."""
        for own in (0, 1):
            at_ns, events = START_NS, [Heartbeat(sequence=0, at_ns=START_NS)]
            for step in range(40):
                at_ns += 20 * MS
                events.append(IterationEnded(step=step, span_id=step + 1, at_ns=at_ns, duration_ns=20 * MS))
                if step % 10 == 9:
                    length_ns = round(save_s.get(own, 0.0) * S)
                    at_ns += length_ns
                    if length_ns:
                        events.append(
                            SpanEnded(
                                name="checkpoint_save_sync", span_id=1000 + step, at_ns=at_ns, duration_ns=length_ns
                            )
                        )
            events.append(SourceEnded(reason="exit", at_ns=at_ns))
            write_log(tmp_path, Source(id=f"{own:016x}", run_id="job", rank=own, world_size=2), events)
        (found,) = [one for one in read_report(tmp_path).verdict.findings if one.kind == "checkpoints"]
        assert found.rank == rank
        assert found.evidence[0] == "4 saves of 1.2 s on average, the longest 1.2 s"

    @staticmethod
    def forwards(lengths_ms):
        """Return the tiles of steps that are a forward pass of each of the *lengths_ms*."""
        tiles = StepTiles()
        at_ns = S
        for step, length_ms in enumerate(lengths_ms):
            end_ns = at_ns + length_ms * S // 1000
            tiles.add_part(at_ns, end_ns, "model_forward")
            tiles.end_step(step, at_ns, end_ns)
            at_ns = end_ns
        return {0: tiles}

    @pytest.mark.parametrize(("pausing", "is_every_rank"), [((0, 2), False), ((0, 1, 2), True), ((1,), False)])
    def test_ranks_that_pause(self, pausing, is_every_rank):
        """The ranks that pause are named; together their pauses, which are in the same steps, cost as much as one's."""
        tiles = {}
        for rank in range(3):
            length_ms = 304 if rank in pausing else 4
            tiles |= {rank: self.forwards(length_ms if step % 10 == 9 else 4 for step in range(80))[0]}
        pause = find_pause(tiles, ())
        assert (pause.ranks, pause.is_every_rank) == (pausing, is_every_rank)
        assert pause.cost_s == pytest.approx(8 * 0.3)

    def test_pause_beside_noise(self):
        """Steps that are longer now and then do not hide pauses of 300 ms every ten steps, which are longer still."""
        longer_ms = dict.fromkeys((3, 14, 17, 35, 36, 48, 62), 12) | dict.fromkeys(range(9, 80, 10), 300)
        pause = find_pause(self.forwards(4 + longer_ms.get(step, 0) for step in range(80)), ())
        assert (pause.every_steps, pause.steps, pause.length_ns) == (10, tuple(range(9, 80, 10)), 300e6)

    @pytest.mark.parametrize(
        ("paused", "is_regular"),
        [
            ((7, 15, 24, 32, 40, 50), False),  # as in a job whose steps stalled by chance
            ((9, 19, 29, 39, 49, 59, 69, 79), True),
            ((9, 19, 28, 39, 49, 59, 68, 79), True),
        ],
    )
    def test_pauses_by_chance(self, paused, is_regular):
        """Six pauses about eight steps apart, as chance gives one job in fifty, are not called regular."""
        pause = find_pause(self.forwards(104 if step in paused else 4 for step in range(80)), ())
        assert (pause is not None) is is_regular

    @pytest.mark.parametrize(("length_ms", "found"), [(1005, ((17, 60), 1001e6)), (1003, None)])
    def test_long_pauses(self, length_ms, found):
        """Steps longer by a second and more are pauses without a regular interval, be they two."""
        pause = find_pause(self.forwards(length_ms if step in {17, 60} else 4 for step in range(80)), ())
        assert (pause and (pause.steps, pause.length_ns)) == found
        assert pause is None or pause.every_steps is None
