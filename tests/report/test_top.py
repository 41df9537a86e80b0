"""The live view of a running job."""

from __future__ import annotations

import io
import itertools
import json
import math
from types import SimpleNamespace

import attrs
import pytest

from processes import Process, numbered
from trackside.cli._main import _SIMILAR
from trackside.events import (
    EventsDropped,
    ExceptionRaised,
    Heartbeat,
    IterationEnded,
    MetricsLogged,
    Source,
    SourceEnded,
    SpanEnded,
    SpanStarted,
    StallDetected,
)
from trackside.handlers import replay
from trackside.report import Top, _gather, _report, _top, read_report, top_line
from trackside.report._whatif import late_words
from trackside.testing import recorded

pytestmark = pytest.mark.once

S = 10**9


@pytest.fixture
def watched(made_up):
    """Give a function that returns the view of a generated job, *later_s* after its last event."""

    def run(later_s=0.0, **job):
        top, last_ns = Top(), 0
        for event in replay(made_up(**job)):
            top.drive(event)
            last_ns = max(last_ns, event.at_ns)
        return top.view(last_ns + round(later_s * S))

    return run


def rank_of(rank, ranks=2, run_id="run"):
    """Return the source of one of some ranks."""
    return Source(id=f"s{rank}", run_id=run_id, rank=rank, world_size=ranks)


@pytest.fixture
def make_event():
    """Give a function that returns an event of one rank, numbered in the order in which they are made."""
    source, made = Source(id="s", run_id="run"), itertools.count()

    def make(kind, at_ns=None, **fields):
        seq = next(made)
        event = kind(**{"at_ns": S * (seq + 1) if at_ns is None else at_ns, "span_id": 0} | fields)
        return recorded(event, source=source, seq=seq)

    return make


class TestView:
    def test_running(self, watched):
        """Step, rate, goodput and counters are the job's: steps of 112 ms make 8.9 a second."""
        view = watched(noise=0, stumbles=0, hangs_s=1)
        assert (view.session, view.step, view.ranks, view.alive, view.has_ended) == ("made-up", 299, 4, 4, False)
        assert view.steps_per_s == pytest.approx(1 / 0.11, rel=0.01)
        assert 0.9 < view.goodput < 1
        assert [(one.name, one.level) for one in view.counters] == [("process.memory.usage", 8e9)]

    def test_metrics(self, make_event):
        """A value that was recorded by name is shown at once, and the latest one."""
        top = Top()
        for accuracy in (0.5, 0.75):
            top.drive(make_event(MetricsLogged, values={"accuracy": accuracy, "note": "warm"}))
        view = top.view(5 * S)
        assert [(one.name, one.level) for one in view.counters] == [("accuracy", 0.75)]

    def test_parts(self, make_event):
        """A row has the mean time of each part of a step, and what lies between the parts: of 10 and 30 ms, 20 ms."""
        top = Top()
        for step, length_ns in enumerate((10_000_000, 30_000_000)):
            began_ns = S + step * 100_000_000
            top.drive(make_event(SpanEnded, began_ns + length_ns, name="data_loading", duration_ns=length_ns))
            top.drive(make_event(IterationEnded, began_ns + 100_000_000, step=step, duration_ns=100_000_000))
        (row,) = top.view(2 * S).rows
        assert row.parts == {"data_loading": 20_000_000, "outside measured parts": 80_000_000}

    def test_losses(self, make_event):
        """The latest losses are those of the steps that have one."""
        top = Top()
        for step, loss in enumerate((3.0, None, 2.0)):
            top.drive(make_event(IterationEnded, step=step, duration_ns=1_000_000, loss=loss))
        assert top.view(5 * S).losses == (3.0, 2.0)

    def test_curves(self, make_event):
        """The curves are over all steps that were seen, of one run: here the second one's two."""
        top = Top()
        top.drive(make_event(IterationEnded, step=7, duration_ns=1_000_000, loss=9.0))
        for step, loss in enumerate((3.0, math.nan)):
            later = make_event(IterationEnded, (40 + step) * S, step=step, duration_ns=2_000_000, loss=loss)
            top.drive(recorded(later, source=Source(id="t", run_id="later"), seq=later.seq))
        view = top.view(50 * S)
        assert view.loss_curve == _top.Curve(first_step=0, last_step=0, values=(3.0,))
        assert view.step_curve == _top.Curve(first_step=0, last_step=1, values=(2_000_000, 1_000_000_000))

    def test_happened(self, make_event):
        """Exceptions and finished validations are listed, the latest first."""
        top = Top()
        top.drive(make_event(SpanEnded, name="validation_loop", duration_ns=20_000_000))
        top.drive(make_event(SpanEnded, name="model_forward", duration_ns=20_000_000))
        top.drive(make_event(ExceptionRaised, step=3, type="ValueError", message="bad batch"))
        assert [one.text for one in top.view(9 * S).happened] == [
            "step 3: ValueError: bad batch",
            "validation_loop, 20 ms",
        ]

    def test_many_runs(self, make_event):
        """The history of the latest four runs is kept, however many there are."""
        top = Top()
        for number in range(9):
            ended = make_event(IterationEnded, step=0, duration_ns=1_000_000)
            top.drive(recorded(ended, source=Source(id=f"s{number}", run_id=f"run-{number}"), seq=number))
        assert list(top._histories) == ["run-5", "run-6", "run-7", "run-8"]

    def test_ended(self, watched):
        """A job that ended has ended."""
        assert watched().has_ended

    @pytest.mark.parametrize(("ended", "is_over"), [((), False), ((0,), False), ((0, 1), True)])
    def test_over(self, ended, is_over):
        """A job is over when each of its ranks has ended."""
        top = Top()
        assert not top.is_over(S)
        for rank in (0, 1):
            events = [IterationEnded(step=0, at_ns=S, span_id=1, duration_ns=1)]
            events += [SourceEnded(at_ns=S, span_id=0, reason="closed")] if rank in ended else []
            for event in numbered(events, rank_of(rank)):
                top.drive(event)
        assert top.is_over(S) is is_over

    def test_slow(self, watched):
        """A slow rank is named, with its section."""
        view = watched(factor=lambda rank, step, part: 2.0 if (rank, part) == (2, "model_forward") else 1.0)
        assert (view.worst[0].rank, "slow in model_forward" in view.worst[0].why) == (2, True)

    def test_late_in_turn(self, watched):
        """Ranks that are slow in turn, each for thirty steps of sixty, are all named."""
        view = watched(
            ranks=2, factor=lambda rank, step, part: 8.0 if (step // 30 % 2, part) == (rank, "model_forward") else 1.0
        )
        assert [(one.rank, one.why.partition(":")[0]) for one in view.worst] == [
            (0, "late in turn with others"),
            (1, "late in turn with others"),
        ]

    def test_slow_since_before_a_restart(self, made_up):
        """A rank that is late since before a restart is late since the step of which the report speaks, too."""
        logs = made_up(killed_at=(230,), factor=lambda rank, step, part: 1.0 + (rank == 2 and step >= 150))
        top = Top()
        for event in replay(logs):
            top.drive(event)
        view = top.view(0)
        (late,) = read_report(logs).late
        assert (late.rank, late.since_step) == (2, 150)
        assert [(one.rank, one.why) for one in view.worst] == [(2, late_words(late))]

    def test_long_job(self, make_event):
        """Of a job of two ranks as many steps are compared as the report compares, 4,096; of 1,024 ranks 128."""
        blocks = [_top._Process.of(Source(id="s", world_size=ranks)).record.tiles.most for ranks in (2, 1_024)]
        assert blocks == [_gather.Gatherer(2)._most_blocks, 128] == [4_096, 128]

    def test_run_without_a_name(self):
        """Ranks whose launcher named no run are one job, as in the report: each gave itself another id."""
        top = Top()
        for rank in (0, 1):
            event = IterationEnded(step=rank, at_ns=S, span_id=1, duration_ns=1)
            top.drive(recorded(event, source=rank_of(rank, run_id=f"run-{rank:012x}")))
        assert [(row.rank, row.step) for row in top.view(S).rows] == [(0, 0), (1, 1)]

    def test_goodput_without_a_name(self):
        """Goodput is that of all ranks of such a job: from the start of the first one to the end of the last one."""
        top = Top()
        for rank, ended_s in ((0, 2), (1, 5)):
            source = Source(id=f"s{rank}", run_id=f"run-{rank:012x}", rank=rank, world_size=2)
            event = IterationEnded(step=0, at_ns=ended_s * S, span_id=1, duration_ns=(2 * rank + 1) * S)
            event._source, event._seq = source, 0
            top.drive(event)
        assert top.view(5 * S).elapsed_s == 4  # rank 0 began at 1 s, rank 1 at 2 s

    @pytest.mark.parametrize(("age_s", "named"), [(1, []), (30, [(1, "157 steps behind")])])
    def test_apart(self, age_s, named):
        """A rank that others do not wait for may be behind without being named; one that also stands still is named."""
        top = Top()
        for rank, steps in ((0, 197), (1, 40)):
            for step in range(steps):
                at_s = 100 + step / steps if rank == 0 else 101 - age_s - (steps - 1 - step) / steps
                event = IterationEnded(step=step, at_ns=round(at_s * S), span_id=step + 1, duration_ns=S // 500)
                top.drive(recorded(event, source=rank_of(rank), seq=step))
        assert [(one.rank, one.why) for one in top.view(101 * S).worst] == named

    def test_open(self, watched):
        """Open spans are shown, with their start."""
        view = watched(hangs_s=5)
        assert {(one.rank, one.name) for one in view.open} >= {(2, "save_to_bucket"), (0, "waiting")}

    def test_silent(self, watched):
        """Ranks that are silent for more than three heartbeats are not alive, and named."""
        view = watched(later_s=20, hangs_s=1)
        assert (view.alive, [one.why for one in view.worst]) == (0, ["silent for 20 s, at step 299"] * 4)

    def test_stalled(self, make_event):
        """A rank that stalls is named with the stack of its main thread, until a step ends."""
        top = Top()
        stalled = {"stalled_s": 60.0, "usual_s": 0.1, "stacks": {"MainThread": "/job/train.py:42 in next_batch"}}
        top.drive(make_event(StallDetected, step=7, at_ns=100 * S, **stalled))
        (worst,) = top.view(101 * S).worst
        assert worst.why == "stalled for 1.02 min, since step 7, in next_batch (train.py:42)"
        top.drive(make_event(IterationEnded, step=8, at_ns=101 * S, duration_ns=S))
        assert top.view(101 * S).worst == ()

    def test_stalled_and_ended(self, make_event):
        """A rank that an exception ended while it stalled is named with both."""
        top = Top()
        stacks = {"MainThread": "/job/train.py:42 in next_batch"}
        top.drive(make_event(IterationEnded, step=7, at_ns=30 * S, duration_ns=S))
        top.drive(make_event(StallDetected, step=7, at_ns=100 * S, stalled_s=60.0, usual_s=0.1, stacks=stacks))
        top.drive(make_event(SourceEnded, at_ns=101 * S, step=-1, reason="KeyboardInterrupt"))
        (worst,) = top.view(102 * S).worst
        assert worst.why == "ended by KeyboardInterrupt, at step 7, in next_batch (train.py:42)"

    @pytest.mark.parametrize(
        ("reason", "named"),
        [("RuntimeError", [(1, "ended after a stall, since step 7, in load (train.py:42)")]), ("closed", [])],
    )
    def test_stalled_and_ended_well(self, reason, named):
        """A rank that ended well after a stall is named where another one did not, and nobody where all ended well."""
        top = Top()
        stall = {"stalled_s": 60.0, "usual_s": 0.1, "stacks": {"MainThread": "/job/train.py:42 in load"}}
        events = [(1, StallDetected(step=7, at_ns=100 * S, span_id=0, **stall))]
        events += [
            (rank, SourceEnded(reason=own, at_ns=101 * S, span_id=0, step=-1))
            for rank, own in ((0, reason), (1, "closed"))
        ]
        for seq, (rank, event) in enumerate(events):
            top.drive(recorded(event, source=rank_of(rank), seq=seq))
        found = [(one.rank, one.why) for one in top.view(101 * S).worst]
        assert [one for one in found if one[0] == 1] == named

    def test_waits_for_the_stalled(self):
        """Of ranks that stopped in one step the one that waits for the others says so, and comes after them."""
        top = Top()
        for rank, place in enumerate(("/x/torch/distributed/c10d.py:9 in all_reduce", "/job/train.py:42 in load")):
            stall = StallDetected(
                step=7, at_ns=100 * S, span_id=0, stalled_s=60.0, usual_s=0.1, stacks={"MainThread": place}
            )
            top.drive(recorded(stall, source=rank_of(rank)))
        assert [(one.rank, one.why.partition(",")[0]) for one in top.view(101 * S).worst] == [
            (1, "stalled for 1.02 min"),
            (0, "waits for others"),
        ]

    def test_ended_first(self):
        """Of ranks that exceptions ended in one step the first comes first: what the others raise follows from it."""
        top = Top()
        for rank, (reason, at_s) in enumerate((("RuntimeError", 103), ("OutOfMemoryError", 101))):
            rank_ended = Process(rank_of(rank), at_ns=100 * S).add(IterationEnded, step=7, span_id=1, duration_ns=S)
            for event in rank_ended.add(SourceEnded, reason=reason, at_ns=at_s * S).events:
                top.drive(event)
        assert [one.why for one in top.view(104 * S).worst] == [
            "ended by OutOfMemoryError, at step 7",
            "ended by RuntimeError, at step 7",
        ]

    def test_restarted(self, watched):
        """After a restart the ranks are those of the new attempt."""
        view = watched(killed_at=(130,))
        assert (view.ranks, view.step, view.has_ended) == (4, 299, True)

    def test_nothing_yet(self):
        """Before the first event there is nothing to show, and no error."""
        view = Top().view(S)
        assert (view.session, view.behind_s, top_line(view)) == (
            "",
            None,
            "waiting for the first event of a rank",
        )

    def test_lost(self):
        """Missed events are reported."""
        top = Top()
        top.lose(7)
        assert top.view(S).lost == 7

    def test_slow_answers(self, watched, made_up, monkeypatch):
        """A result that takes long to compute is updated no more often than it can be computed."""
        now_s = [0.0]

        def clock():
            now_s[0] += 1.0  # each reading of the clock is a second later: the computation takes one
            return now_s[0]

        monkeypatch.setattr(_top, "time", SimpleNamespace(monotonic=clock))
        top = Top()
        for event in replay(made_up(ranks=1, steps=20)):
            top.drive(event)
        first = top.view(S).goodput
        top.goodput = None  # it is not computed again for ten seconds
        assert [top.view(S).goodput for _ in range(3)] == [first] * 3

    def test_json(self, watched):
        """The view is JSON."""
        assert json.loads(json.dumps(watched().to_json(), allow_nan=False))["step"] == 299


def without_latest(view):
    unknown = dict.fromkeys(("loss", "gpu", "cpu", "memory", "parts"))
    history = {"step_curve": None, "loss_curve": None, "happened": ()}
    return attrs.evolve(view, **history, losses=(), rows=tuple(attrs.evolve(row, **unknown) for row in view.rows))


class TestLate:
    """A viewer whose models got their states from the job, and that gets the stream from there on."""

    @pytest.fixture
    def joined(self, made_up):
        """Give a function that returns a view of the last *heard* events of a generated job, and one of all of it."""

        def run(heard, **job):
            events = list(replay(made_up(noise=0, stumbles=0, **job)))
            whole, late = Top(), Top()
            for index, event in enumerate(events):
                if index == len(events) - heard:
                    for model, kept in zip(late.models, whole.models, strict=True):
                        model.load(kept.dump())
                whole.drive(event)
                if index >= len(events) - heard:
                    late.drive(event)
            if not heard:
                for model, kept in zip(late.models, whole.models, strict=True):
                    model.load(kept.dump())
            late.catch_up()
            now_ns = max(event.at_ns for event in events)
            return late.view(now_ns), whole.view(now_ns)

        return run

    @pytest.mark.parametrize("heard", [0, 1, 10, 500])
    def test_sees_all(self, joined, heard):
        """
        Whenever it came, it shows the same as if it had been there from the start.

        The losses, the parts of a step and the gauges are the exception: they come with the next step and window. The
        curves and the list of events begin when it came.
        """
        late, whole = joined(heard, hangs_s=1)
        assert without_latest(late) == without_latest(whole)
        assert (late.step, late.alive, len(late.lengths_ns)) == (299, 4, 50)

    def test_ended(self, joined):
        """Ranks that had ended before have ended."""
        late, whole = joined(0)
        assert late.has_ended
        assert without_latest(late) == without_latest(whole)

    def test_silent_before(self, joined, made_up):
        """Ranks that fell silent before it came are missed."""
        late, _ = joined(0, hangs_s=1)
        assert late.ranks == 4
        top = Top()
        for event in replay(made_up(hangs_s=1)):
            top.goodput(event)
        top.catch_up()
        last_ns = max(one.signs.last_ns for one in top.goodput.lately(1))
        assert [one.why for one in top.view(last_ns + 20 * S).worst] == ["silent for 20 s, at step 299"] * 4

    def test_again(self, joined, made_up):
        """After a gap, it goes on from the newer state."""
        events = list(replay(made_up(ranks=1, noise=0, stumbles=0)))
        top, whole = Top(), Top()
        for event in events[:400]:
            top.drive(event)
        for event in events:
            whole.drive(event)
        top.goodput.load(whole.goodput.dump())
        top.catch_up()
        assert (top.view(S).step, top.view(S).steps_per_s) == (299, whole.view(S).steps_per_s)

    def test_step_time(self, joined, made_up):
        """The loaded state has the same step time: from step to step, waiting for data included."""
        events = list(replay(made_up(ranks=1, noise=0, stumbles=0, loading_s=0.05)))
        top, whole = Top(), Top()
        for event in events:
            whole.drive(event)
        top.goodput.load(whole.goodput.dump())
        top.catch_up()
        assert top.view(S).step_ns == pytest.approx(whole.view(S).step_ns, rel=0.01)

    def test_given_up_before(self, make_event):
        """Events dropped before are in the heartbeats; those dropped now are not counted twice."""
        top = Top()
        top.drive(make_event(Heartbeat, sequence=0, counts={"dropped": 7}))
        assert top.view(S).lost == 7
        top.drive(make_event(EventsDropped, where="queue", by_type={"a": 2}, since_ns=0))
        top.drive(make_event(Heartbeat, sequence=1, counts={"dropped": 9}))
        assert top.view(S).lost == 9

    def test_reported_at_once(self, make_event):
        """Dropped events are reported before the next heartbeat counts them."""
        top = Top()
        top.drive(make_event(EventsDropped, where="queue", by_type={"a": 2, "b": 1}, since_ns=0))
        assert top.view(S).lost == 3

    def test_step_over_already(self, make_event):
        """A step that was open at the last heartbeat and has ended since is not open; the span around it is."""
        top = Top()
        spans = [(1, "training_loop", 5 * S), (2, "training_single_iteration", 8 * S)]
        top.drive(
            make_event(SpanStarted, span_id=1, parent_span_id=0, name="training_loop", attributes={}, at_ns=5 * S)
        )
        top.drive(make_event(Heartbeat, sequence=0, open_spans={"MainThread": list(spans[1])}, at_ns=9 * S))
        assert [one.name for one in top.view(9 * S).open] == ["training_single_iteration"]
        # The job's model of long spans alone never gets its end; the viewer knows it by the model of goodput.
        top.goodput(make_event(IterationEnded, span_id=2, step=0, duration_ns=2 * S, at_ns=10 * S))
        top.catch_up()
        assert [one.name for one in top.view(10 * S).open] == ["training_loop"]


class TestScreen:
    def test_since(self, watched):
        """Data that begins when the viewer came is marked so; the job's own is not."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")

        def shown(*partial):
            out = io.StringIO()
            rich.make_console(file=out, width=100).print(rich._top(attrs.evolve(view, partial=partial), 100, 40))
            return [line.strip() for line in out.getvalue().splitlines() if "since attached" in line]

        view = watched(ranks=3, hangs_s=1)
        assert shown() == []
        assert shown("CounterBoard", "OpenSpans") == ["open spans since attached", "counters since attached"]
        (goodput,) = shown("GoodputAccumulator")
        assert goodput.startswith("goodput ")

    @pytest.mark.parametrize(("sort", "first"), [("rank", "0"), ("step time", "3"), ("step", "0")])
    def test_sort(self, watched, sort, first):
        """The ranks are sorted by number, or by a column with the worst first."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        view = watched(ranks=4, steps=60, hangs_s=1)
        rows = [attrs.evolve(row, step_ns=(row.rank + 1) * 1e6) for row in view.rows]
        _, shown = rich._ranks(attrs.evolve(view, rows=tuple(rows)), sort, 80)
        assert (len(shown), shown[0][0]) == (4, first)

    def test_parts(self, watched):
        """The parts of a step are a table with a line for each rank; what lies between them is its last column."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        view = watched(ranks=2, steps=60, hangs_s=1)
        parts = {"outside measured parts": 1e6, "model_forward": 2e6}
        view = attrs.evolve(view, rows=tuple(attrs.evolve(row, parts=parts) for row in view.rows))
        out = io.StringIO()
        rich.make_console(file=out, width=80).print(rich._top(view, 80, 40))
        lines = out.getvalue().partition("parts of a step")[2].splitlines()[1:4]
        assert [line.split() for line in lines] == [
            ["rank", "model_forward", "rest"],
            ["0", "2", "ms", "1", "ms"],
            ["1", "2", "ms", "1", "ms"],
        ]

    def test_loss(self, watched):
        """The losses are drawn beside the latest one."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        view = attrs.evolve(watched(ranks=2, steps=60, hangs_s=1), losses=(2.0, 1.0), tokens_per_s=5.0, eta_s=None)
        (line,) = rich._rates(view, 80)
        assert line.plain == "loss 1  █▁  tokens/s 5"

    @pytest.mark.parametrize(("height", "headings"), [(12, []), (24, ["step time"]), (50, ["step time", "loss"])])
    def test_history(self, watched, height, headings):
        """The lines that are left have curves over the whole job, as many as there is room for, and the last line."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        curve = _top.Curve(first_step=3, last_step=59, values=(1.0, 3.0, 2.0))
        view = attrs.evolve(watched(ranks=2, steps=60, hangs_s=1), step_curve=curve, loss_curve=curve)
        out = io.StringIO()
        rich.make_console(file=out, width=80).print(rich._top(view, 80, height))
        lines = out.getvalue().splitlines()
        shown = [line.strip() for line in lines if "steps 3 to 59" in line]
        assert shown == [f"{name}, steps 3 to 59" for name in headings]
        assert (len(lines) <= height, lines[-1].strip()) == (True, "lost 0")

    def test_ended(self, watched):
        """Of a job that has ended, the line of steps has its last rate and names no time without steps."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        view = watched(noise=0, stumbles=0, later_s=75)
        assert rich._step_line(view, 80).plain.startswith("step 299  9.09 steps/s at the end  ")

    def test_ended_by_an_error(self, watched):
        """Of a job that an exception ended, the first line names that."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        view = watched()
        failed = attrs.evolve(view, rows=tuple(attrs.evolve(row, error="ValueError") for row in view.rows))
        assert "  ended by ValueError" in rich._head(failed, 80).plain

    def test_nothing_yet(self):
        """While nothing has come, the screen names what it waits for."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        shown = rich._top(Top().view(0), 80, 24, rich.ScreenState(where="runs/new"))
        assert str(shown) == "waiting for the first event of a rank in runs/new …  q quit"

    @pytest.mark.parametrize("width", [40, 80])
    def test_narrow(self, watched, width):
        """A long finding is shown whole, and the state of the ranks stands beside a name that has to be cut."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        why = "slow between model_forward and model_backward: 9.99 ms a step, since step 61"
        worst = (_top.Worst(rank=1, host="node-1", why=why),)
        view = attrs.evolve(watched(ranks=2, steps=60, hangs_s=1), worst=worst, session="x" * 90)
        out = io.StringIO()
        rich.make_console(file=out, width=width).print(rich._top(view, width, 24))
        head, *lines = out.getvalue().splitlines()
        assert "…  2 of 2 ranks alive" in head
        assert why in " ".join(line.strip() for line in lines)
        assert max(map(len, lines)) <= width

    def test_narrow_names(self, watched):
        """On a narrow screen the names of what the time went into take more lines: none is cut or left out."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        badput = (("DATA_LOADING", 0.3), ("RESTART_DOWNTIME", 0.2), ("UNACCOUNTED", 0.1))
        view = attrs.evolve(watched(steps=60), goodput=0.4, badput=badput)
        out = io.StringIO()
        rich.make_console(file=out, width=40).print(rich._top(view, 40, 24))
        names = out.getvalue().partition("goodput 40.0 %")[2].splitlines()[1:5]
        assert [line.rstrip() for line in names] == [
            "█ productive 40.0 %",
            "▒ data loading 30.0 %",
            "▒ restart downtime 20.0 %",
            "▒ unaccounted 10.0 %",
        ]

    def test_light_ground(self):
        """Each bucket's colour differs from a white ground by 3 to 1 at least, as WCAG asks of graphics."""
        color = pytest.importorskip("rich.color", reason="rich is not installed in this environment")

        def luminance(name):
            parts = [part / 255 for part in color.Color.parse(name).get_truecolor()]
            red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue

        looks = [*_report._SHOWN.values(), _report.shown("CUSTOM")]
        assert [look.name for look in looks if 1.05 / (luminance(look.terminal) + 0.05) < 3] == []

    def test_keys(self, watched):
        """The keys are not coloured as the count of lost events before them is."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        last = rich._top(watched(steps=60), 80, 40, rich.ScreenState()).renderables[-1]
        assert [(last.plain[span.start : span.end].strip(), span.style) for span in last.spans] == [
            ("lost 0", "green"),
            ("q quit  p pause  s sort", "dim"),
        ]

    def test_stale(self, watched):
        """If no step ended for long, the rate is the previous one: here for 76 s, of steps of 112 ms."""
        view = watched(noise=0, stumbles=0, hangs_s=1, later_s=75)
        assert view.is_stale
        assert "steps/s" not in top_line(view)
        assert not watched(noise=0, stumbles=0, hangs_s=1).is_stale

    @pytest.mark.parametrize("height", [10, 24, 50])
    def test_ascii(self, watched, height):
        """If the terminal has only ASCII, each sign has a similar one: no escape is shown."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        out = io.StringIO()
        rich.make_console(file=out, width=40).print(rich._top(watched(ranks=9, hangs_s=1, later_s=30), 40, height))
        beyond = {sign for sign in out.getvalue() if not sign.isascii()}
        assert beyond <= set(_SIMILAR)
        assert max(map(len, out.getvalue().splitlines())) <= 40

    @pytest.mark.parametrize("height", [4, 10, 12, 14, 16, 18, 20, 24, 50])
    def test_fits(self, watched, height):
        """The view is never higher than the screen, nor wider, however many ranks and rows there are."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        view = watched(ranks=40, steps=60, hangs_s=1, later_s=30)
        out = io.StringIO()
        console = rich.make_console(file=out, width=80)
        console.print(rich._top(view, 80, height))
        lines = out.getvalue().splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= 80
        assert any("made-up" in line for line in lines)
        assert any(line.startswith("lost 0") for line in lines)
