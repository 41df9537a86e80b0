"""A session as a trace."""

from __future__ import annotations

import io
import json
import math
from collections import defaultdict

import pytest

from trackside.cli import main
from trackside.events import (
    ClockAnchored,
    CounterWindow,
    IterationEnded,
    Source,
    SourceStarted,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    UnreadableError,
)
from trackside.report import _trace, write_trace

pytestmark = pytest.mark.once

S = 10**9
START_NS = 1_700_000_000 * S


@pytest.fixture
def trace():
    """Give a function that returns the summary of the export, and the events of the trace."""

    def run(*paths, **options):
        out = io.StringIO()
        reported = write_trace(out, *paths, **options)
        return reported, json.loads(out.getvalue())["traceEvents"]

    return run


@pytest.fixture
def log(tmp_path, write_events):
    """Give a function that writes the log of a rank."""

    def write(events, **reported):
        source = Source(**{"id": "0001", "run_id": "run", "host": "node", **reported})
        write_events(tmp_path, source, events)
        return tmp_path

    return write


def slices(events, **wanted):
    return [one for one in events if one["ph"] == "X" and all(one[key] == value for key, value in wanted.items())]


def anchored(at_ns=START_NS):
    return ClockAnchored(at_ns=at_ns, step=-1, mono_ns=0, wall_ns=at_ns, offset_ns=0, uncertainty_ns=50)


def ended(name, start_ns, end_ns, span=1, parent=0, **attributes):
    times = {"at_ns": START_NS + end_ns, "duration_ns": end_ns - start_ns}
    return SpanEnded(**times, step=-1, span_id=span, parent_span_id=parent, name=name, attributes=attributes)


class TestTracks:
    def test_ranks_are_processes(self, made_up, trace):
        """Each rank is a process with its name, and all of its events are there."""
        reported, events = trace(made_up(ranks=2, steps=60))
        names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
        assert names == {0: "rank 0 · node0", 1: "rank 1 · node0"}
        assert len(slices(events, name="training_single_iteration", pid=1)) == 60
        recorded = [one for one in events if one["ph"] != "M"]  # the others give processes and threads their names
        assert (reported.ranks, reported.events, reported.unaligned) == (2, len(recorded), [])

    def test_nest(self, made_up, trace):
        """On each track slices come by time, and are nested or separate."""
        _, events = trace(made_up(killed_at=(130,), validate_every=50, validation_s=0.1))
        tracks = defaultdict(list)
        for one in slices(events):
            tracks[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
        assert {process for process, _ in tracks} == {0, 1, 2, 3}
        for track in tracks.values():
            assert track == sorted(track, key=lambda bounds: (bounds[0], -bounds[1]))
            around = []
            for start, end in track:
                while around and around[-1] <= start + 0.001:
                    around.pop()
                assert not around or end <= around[-1] + 0.001
                around.append(end)

    def test_overlapping(self, log, trace):
        """Slices of one thread that overlap without nesting get a track of their own."""
        _, events = trace(log([anchored(), ended("a", 0, 10**6), ended("b", 5 * 10**5, 2 * 10**6, 2)]))
        names = [one["args"]["name"] for one in events if one["name"] == "thread_name"]
        assert names == ["main", "main (overlapping 1)"]

    def test_clock_slack(self, log, trace):
        """A span that seems to end some microseconds after the one around it is inside it all the same."""
        inner = ended("inner", 10, 1_000_900, 2, 1)
        _, events = trace(log([anchored(), inner, ended("outer", 200, 1_000_000, 1)]))
        assert {one["tid"] for one in slices(events)} == {1}

    def test_threads(self, log, trace):
        """Spans of another thread are on a track with its name."""
        _, events = trace(log([anchored(), ended("save", 0, 9, thread="writer")]))
        assert [one["args"]["name"] for one in events if one["name"] == "thread_name"] == ["writer"]

    def test_open(self, log, trace):
        """A span without an end lasts until the last event of its process, and is marked."""
        start = SpanStarted(at_ns=START_NS, step=-1, span_id=1, parent_span_id=0, name="training_loop")
        _, events = trace(log([anchored(), start, anchored(START_NS + S)]))
        (one,) = slices(events)
        assert (one["dur"], "open" in one["args"]) == (1e6, True)

    def test_points_and_figures(self, log, trace):
        """An event without a duration is a point, a counter's window a value."""
        point = SpanEventAdded(at_ns=START_NS + 1_000, step=-1, span_id=1, name="woke", attributes={"why": "alarm"})
        window = CounterWindow(
            at_ns=START_NS + 2_000, step=-1, span_id=0, name="loss", start_ns=START_NS, end_ns=START_NS + 2_000,
            count=1, values={"mean": 2.5}, total_count=1, total_sum=2.5,
        )  # fmt: skip
        _, events = trace(log([anchored(), point, window]))
        shown = [(one["ph"], one["name"], one["ts"], one["args"]) for one in events if one["ph"] in "iC"]
        assert shown == [("i", "woke", 1.0, {"why": "alarm"}), ("C", "loss", 2.0, {"value": 2.5})]

    def test_no_number(self, log, trace):
        """A value that is no finite number does not make the file unreadable."""
        _, events = trace(log([anchored(), ended("a", 0, 9, loss=float("nan"))]))
        assert slices(events)[0]["args"] == {"loss": "nan"}


class TestClocks:
    def test_zero(self, log, trace):
        """Time zero is the earliest start, also of a span that began before the source was recorded as started."""
        started = SourceStarted(at_ns=START_NS + S // 5, step=-1, span_id=0, identity={})
        _, events = trace(log([started, anchored(START_NS + S // 5), ended("application", 0, S)]))
        assert [(one["ts"], one["dur"]) for one in slices(events)] == [(0.0, 1_000_000.0)]
        assert min(one["ts"] for one in events if "ts" in one) == 0.0

    def test_unaligned(self, log, trace):
        """A rank whose clock cannot be related to the others' is marked, in the trace and in the summary."""
        log([anchored(), ended("a", 0, 9)])
        reported, events = trace(log([ended("a", 0, 9)], id="0002", rank=1, host="far"))
        names = [one["args"]["name"] for one in events if one["name"] == "process_name"]
        assert (reported.unaligned, names) == ([1], ["rank 0 · node", "rank 1 · far · CLOCK NOT ALIGNED"])


class TestSelection:
    def test_steps(self, made_up, trace):
        """With selected steps only those are shown, and of the spans around them the overlapping part."""
        _, events = trace(made_up(ranks=1, steps=100), steps=range(20, 23))
        assert sorted(one["args"]["step"] for one in slices(events, name="training_single_iteration")) == [20, 21, 22]
        shown = [one for one in events if one["ph"] in "XiC"]
        first, last = (slices(events, name="training_single_iteration")[index] for index in (0, -1))
        assert all(first["ts"] - 0.001 <= one["ts"] <= last["ts"] + last["dur"] + 0.001 for one in shown)

    def test_ranks(self, made_up, trace):
        """With selected ranks only those are shown."""
        reported, events = trace(made_up(steps=50), ranks={1, 3}.__contains__)
        assert ({one["pid"] for one in events}, reported.ranks) == ({1, 3}, 2)

    def test_size(self, made_up, trace, tmp_path):
        """A slice takes at most 200 bytes: 100,000 are 20 MB."""
        path = made_up(ranks=1, steps=500)
        with (tmp_path / "t.json").open("w") as out:
            reported = write_trace(out, path)
        assert (tmp_path / "t.json").stat().st_size / reported.events < 200


KINETO = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": START_NS,
    "distributedInfo": {"rank": 1},
    "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4242, "tid": 4242, "ts": 1500.5, "dur": 20.25},
        {"ph": "s", "id": 7, "pid": 4242, "tid": 4242, "ts": 1500.5, "cat": "ac2g", "name": "ac2g"},
        {"ph": "M", "name": "process_name", "pid": 4242, "tid": 0, "args": {"name": "python"}},
    ],
}


class TestKineto:
    @pytest.fixture
    def profile(self, tmp_path):
        """Give a function that writes a profiler's trace."""

        def write(**changes):
            path = tmp_path / "profile.json"
            path.write_text(json.dumps({**KINETO, **changes}))
            return path

        return write

    def test_merged(self, log, trace, profile):
        """A profiler's events are shown at their time, in a process of their own named after its rank."""
        reported, events = trace(log([anchored(), ended("a", 0, 9)]), merge=[profile()])
        (one,) = slices(events, name="aten::mm")
        (name,) = [each["args"]["name"] for each in events if each["pid"] == one["pid"] and each["ph"] == "M"]
        assert (one["ts"], one["dur"], name, reported.merged) == (1500.5, 20.25, "rank 1 · profiler 4242", 1)

    def test_flows_of_two(self, log, trace, profile):
        """The flows of two files are not mixed up."""
        path = profile()
        _, events = trace(log([anchored()]), merge=[path, path])
        assert [one["id"] for one in events if one["ph"] == "s"] == ["0:7", "1:7"]

    def test_moved_with_its_rank(self, log, trace, profile):
        """The profile of a machine whose clock is off is moved with it."""
        own = [IterationEnded(at_ns=START_NS + n * S, step=n, duration_ns=S, span_id=n + 1) for n in range(30)]
        log([anchored(), *own])
        late = [IterationEnded(at_ns=START_NS + (n + 3) * S, step=n, duration_ns=S, span_id=n + 1) for n in range(30)]
        path = log([anchored(START_NS + 3 * S), *late], id="0002", rank=1, host="far")
        _, events = trace(path, merge=[profile(baseTimeNanoseconds=START_NS + 3 * S)])
        begins = min(one["ts"] for one in slices(events, pid=0))
        assert slices(events, name="aten::mm")[0]["ts"] - begins == pytest.approx(1e6 + 1500.5, abs=1000)

    @pytest.mark.parametrize(
        "bad", [{"ts": math.inf}, {"ts": math.nan}, {"ts": 1e300}, {"ts": None}, {"ts": 10**400}, {"ph": {}}]
    )
    def test_event_that_is_none(self, log, trace, profile, bad):
        """An event without a possible time, or of no kind, is left out; the others are shown."""
        events = KINETO["traceEvents"]
        _, shown = trace(log([anchored()]), merge=[profile(traceEvents=[{**events[0], **bad}, *events])])
        assert len(slices(shown, name="aten::mm")) == 1

    def test_process_that_is_no_number(self, log, trace, profile):
        """A process may have any name in a profile."""
        _, shown = trace(log([anchored()]), merge=[profile(traceEvents=[{**KINETO["traceEvents"][0], "pid": [1]}])])
        assert "rank 1 · profiler [1]" in [one["args"].get("name") for one in shown if one["ph"] == "M"]

    def test_letters(self, log, profile, tmp_path):
        """Letters are written as they are, which Perfetto needs in names of processes; half an emoji is an escape."""
        path = log([anchored()])
        half = profile(traceEvents=[{**KINETO["traceEvents"][0], "name": "\ud83d"}])
        assert main(["trace", str(path), "-o", str(tmp_path / "trace.json"), "--merge", str(half)]) == 0
        written = (tmp_path / "trace.json").read_text(encoding="utf-8")
        assert '"rank 0 · ' in written
        assert r'"\ud83d"' in written

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [({"traceEvents": 5}, "holds no traceEvents"), ({"baseTimeNanoseconds": None}, "does not say when it was")],
    )
    def test_no_trace(self, log, trace, profile, changes, problem):
        """A file that is no such trace is refused by name."""
        with pytest.raises(UnreadableError, match=problem):
            trace(log([anchored()]), merge=[profile(**changes)])


class TestLanes:
    def test_many_that_overlap(self, monkeypatch):
        """500 slices that overlap and never nest have a lane each, and no more than 64 passes over all are made."""
        compared = []
        nesting = _trace._nesting
        monkeypatch.setattr(_trace, "_nesting", lambda slices: compared.append(len(slices)) or nesting(slices))
        slices = [_trace.Slice(n, 0, "s", n, n + 500, "MainThread", 0, {}) for n in range(500)]
        found = list(_trace.lanes([*slices, _trace.Slice(500, 0, "later", 1_000, 1_001, "MainThread", 0, {})]))
        assert [number for _, number, _ in found] == list(range(500))
        assert sorted(one.id for _, _, lane in found for one in lane) == list(range(501))
        assert len(compared) == 64
