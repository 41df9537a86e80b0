"""The goodput model through its public interface."""

from __future__ import annotations

import json
import tracemalloc

import attrs
import msgpack
import pytest

from framing import frame_of
from trackside.events import ConfigError, DecodeError, Source
from trackside.handlers.models.goodput import GoodputAccumulator, _packed, _track
from trackside.testing import recorded
from trackside.wire import FrameDecoder

pytestmark = pytest.mark.once

PRODUCTIVE, OTHER = "PRODUCTIVE", "OTHER"
RECOVERY, WASTED = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", "WASTED_PROGRESS_FROM_DISRUPTION"
SAVE, LOADING = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME", "DATA_LOADING_SYNC"


def train(stream, steps, start=1, length=10, first=0):
    """Put *steps* steps of *length* ns after each other."""
    for step in range(steps):
        stream.step(first + step, start + length * step, start + length * (step + 1))
    return stream


class TestSessions:
    def test_none(self):
        """Without events a query is an error that says so."""
        with pytest.raises(ConfigError, match="there is no event of any rank"):
            GoodputAccumulator().result()

    def test_by_tag(self, stream, feed):
        """Runs with one tag are one session, whatever their ids."""
        first = train(stream(id="a", run_id="one", session_tag="s").start(1), 2)
        second = train(stream(id="b", run_id="two", session_tag="s").start(31), 2, 31, first=2)
        assert feed(first, second).result().spent_ns == {PRODUCTIVE: 40, RECOVERY: 10}

    def test_by_run(self, stream, feed):
        """
        Without a tag each run is one session; without a name, the result is the latest's, and reports that there are
        others.
        """
        model = feed(
            train(stream(id="a", run_id="one").start(1), 2), train(stream(id="b", run_id="two").start(31), 3, 31)
        )
        assert model.sessions() == ["one", "two"]
        assert (model.result().session, model.result().problems["another session"]) == ("two", 1)
        assert model.result(session="one").productive_s == 20e-9

    def test_unknown(self, stream, feed):
        """An unknown name is an error that lists the known ones."""
        with pytest.raises(ConfigError, match="known are run"):
            feed(stream().start(1)).result(session="x")

    def test_workers_alone(self, stream, feed):
        """Helpers without a rank are no session."""
        assert feed(stream(role="worker").start(1)).sessions() == []


class TestRanks:
    def test_resized(self, stream, feed):
        """Work that an attempt with other ranks did again was lost, also for a rank that the later attempt lacks."""
        both = [train(stream(rank=rank, attempt=0).start(1), 4) for rank in (0, 1)]
        alone = train(stream(rank=0, attempt=1).start(51), 2, 51, first=2)
        again = [train(stream(rank=rank, attempt=2).start(81), 1, 81, first=4) for rank in (0, 1)]
        result = feed(*both, alone, *again).result()
        assert result.spent_ns == {PRODUCTIVE: 20 + 20 + 10, WASTED: 20, RECOVERY: 20}
        assert [rank.productive_s for rank in result.ranks] == [50e-9, 30e-9]

    def test_no_common_run(self, stream, feed):
        """Ranks that run at the same time are one attempt, also if their launcher gave them no common id."""
        ranks = [
            train(stream(id=f"{n}", rank=n, run_id=f"r{n}", session_tag="s").start(1 + n), 4, 1 + n) for n in (0, 1)
        ]
        assert (feed(*ranks).result().attempts, len(feed(*ranks).result().ranks)) == (1, 2)

    def test_silent_rank(self, stream, feed):
        """A rank without recorded steps counts as no slower than those that have some."""
        result = feed(train(stream(rank=0).start(1), 4), stream(rank=1).start(1).beat(41)).result()
        assert result.spent_ns == {PRODUCTIVE: 40}

    def test_hang(self, stream, feed):
        """A rank that hangs has the job's time until the last sign of those that wait for it, while it is running."""
        second = 10**9
        hung = train(stream(rank=1).start(second), 4, second, 10 * second)  # until 41 s
        hung.open("checkpoint_save_sync", 41 * second)
        hung.beat(100 * second)
        waiting = train(stream(rank=0).start(second), 4, second, 10 * second).step_start(4, 41 * second)

        def buckets(last_s):
            waiting.beat(last_s * second)
            return feed(hung, waiting).result().spent_ns

        assert buckets(103) == {PRODUCTIVE: 40 * second, SAVE: 62 * second}
        # Silent after three intervals of 1 s: then what the others do is all that is known.
        assert buckets(104) == {PRODUCTIVE: 44 * second, SAVE: 59 * second}

    def test_first_to_come_last_to_go(self, stream, feed):
        """Before the slowest rank starts and after it ends, the time is in the buckets of the other ranks."""
        early = stream(rank=0).start(1).span("model_initialization", 1, 6)
        train(early, 3, 11).span("checkpoint_save_sync", 41, 46)
        late = stream(rank=1).start(6).span("data_loading", 11, 15).step(0, 15, 21).step(1, 21, 31).step(2, 31, 41)
        assert feed(early, late).result().spent_ns == {
            "TRAINING_PREP": 5,
            OTHER: 5,
            LOADING: 4,
            PRODUCTIVE: 26,
            SAVE: 5,
        }

    def test_last_step(self, stream, feed):
        """The last step is that of the rank that is furthest behind."""
        assert feed(train(stream(rank=0).start(1), 4), train(stream(rank=1).start(1), 3)).result().last_step == 2


class TestStretch:
    def test_clipped(self, stream, feed):
        """Before the start the account is empty, and so it is after the end."""
        model = feed(train(stream().start(1), 4).end(41))
        result = model.result(start_ns=-100, end_ns=1_000)
        assert (result.start_ns, result.end_ns, result.elapsed_s) == (1, 41, 40e-9)

    def test_empty(self, stream, feed):
        """A stretch of length zero has no goodput."""
        result = feed(train(stream().start(1), 4)).result(start_ns=20, end_ns=20)
        assert (result.elapsed_s, result.goodput, result.effective_goodput) == (0.0, None, None)

    def test_later_than_known(self, stream, feed):
        """Beyond the last event of a job that has not ended, no time counts."""
        assert feed(train(stream().start(1), 4)).result(end_ns=61).spent_ns == {PRODUCTIVE: 40, OTHER: 20}

    def test_alive(self, stream, feed):
        """A job that is known to be alive goes on in its present bucket."""
        job = train(stream().start(1), 4)
        job.open("checkpoint_save_sync", 41)
        assert feed(job).result(end_ns=61, is_alive=True).spent_ns == {PRODUCTIVE: 40, SAVE: 20}

    def test_alive_in_a_step(self, stream, feed):
        """A step in progress grows as long as the job is known to be alive."""
        model = feed(stream().step_start(0, 1).step_start(1, 11))
        assert model.result(end_ns=61, is_alive=True).spent_ns == {PRODUCTIVE: 60}

    def test_hindsight(self, stream, feed):
        """Wasted time is wasted in every result since it is known, also for a stretch before."""
        first, second = train(stream(attempt=0).start(1), 4), train(stream(attempt=1).start(51), 2, 51, first=2)
        assert feed(first).result(end_ns=41).spent_ns == {PRODUCTIVE: 40}
        assert feed(first, second).result(end_ns=41).spent_ns == {PRODUCTIVE: 20, WASTED: 20}

    def test_attempts(self, stream, feed):
        """A stretch counts the attempts it has a part of, and the disruptions in it."""
        attempts = [train(stream(attempt=n).start(1 + 20 * n), 1, 1 + 20 * n, first=n) for n in range(3)]
        found = [feed(*attempts).result(start_ns=start, end_ns=end) for start, end in ((1, 61), (1, 15), (25, 61))]
        assert [(result.attempts, result.disruptions) for result in found] == [(3, 2), (1, 0), (2, 1)]

    def test_last_step(self, stream, feed):
        """The last step of a stretch is the last that was over at its end, and was not lost."""
        first, second = train(stream(attempt=0).start(1), 4), train(stream(attempt=1).start(51), 1, 51, first=3)
        model = feed(first, second)
        assert [model.result(end_ns=end).last_step for end in (5, 11, 20, 41, 55, 61)] == [None, 0, 0, 2, 2, 3]

    def test_windows(self, stream, feed):
        """Windows follow each other without a gap; the last one has the remaining time."""
        windows = feed(train(stream().start(1), 4)).windows(15e-9)
        assert [(window.start_ns, window.end_ns) for window in windows] == [(1, 16), (16, 31), (31, 41)]

    def test_windows_of_nothing(self, stream, feed):
        """A window must have a length."""
        with pytest.raises(ConfigError, match="above zero"):
            feed(train(stream().start(1), 4)).windows(0)


class TestStepTimes:
    def test_configured(self, stream, feed):
        """A configured ideal step time is used, wherever it is configured; the query's own takes precedence."""
        job = train(stream().start(1), 4)
        found = [feed(job, ideal_step_time_s=6e-9), feed(job)]
        assert [found[0].result().step_time.degraded_s, found[1].result().step_time.degraded_s] == [16e-9, 0.0]
        assert found[0].result(ideal_step_time_s=8e-9).step_time.degraded_s == 8e-9

    def test_percentiles(self, stream, feed):
        """Percentiles are those of the steps' own times."""
        job, at = stream().start(1), 1
        for step in range(101):
            job.step(step, at, at := at + 1_000 + step)
        times = feed(job).result().step_time
        assert [times.p50_s, times.p90_s, times.p99_s] == pytest.approx([1.050e-6, 1.090e-6, 1.099e-6], rel=0.004)

    def test_own_time(self, stream, feed):
        """A save within a step is not part of the step's own time."""
        job = train(stream().start(1), 3).span("checkpoint_save_sync", 35, 41).step(3, 31, 47)
        assert [step.net for step in feed(job).step_times()] == [10, 10, 10, 10]

    def test_startup_is_not_degraded(self, stream, feed):
        """The first step's excess is startup, and not counted again as degraded."""
        job = train(stream().start(1).step(0, 1, 101), 4, 101, first=1)
        result = feed(job).result()
        assert (result.badput_s["PROGRAM_STARTUP"], result.step_time.degraded_s) == (90e-9, 0.0)

    def test_lost_steps_are_not_degraded(self, stream, feed):
        """Work that was done again cannot be degraded."""
        first = train(stream(attempt=0).start(1), 4).step(4, 41, 141)
        second = train(stream(attempt=1).start(141), 4, 141, first=4)
        assert feed(first, second).result().step_time.degraded_s == 0.0

    def test_window(self, stream, feed):
        """A window has the times of the steps that ended in it, by the session's ideal."""
        job = train(stream().start(1), 4).step(4, 41, 71)
        times = feed(job).result(start_ns=41, end_ns=71).step_time
        assert (times.count, times.p50_s, times.ideal_s, times.slow_steps, times.degraded_s) == (
            1,
            30e-9,
            10e-9,
            1,
            20e-9,
        )

    def test_stretch_of_steps(self, stream, feed):
        """Steps can be selected by the time they ended."""
        model = feed(train(stream().start(1), 9))
        assert [step.number for step in model.step_times(start_ns=21, end_ns=51)] == [2, 3, 4]


class TestValidation:
    def test_productive(self, stream, feed):
        """Validation is badput, or productive, as configured."""
        job = train(stream().start(1), 2).span("validation_loop", 21, 31)
        badput, gain = feed(job).result(), feed(job, validation_is_productive=True).result()
        assert (badput.productive_s, badput.badput_s["VALIDATION"]) == (20e-9, 10e-9)
        assert (gain.productive_s, gain.badput_s["VALIDATION"], gain.goodput) == (30e-9, 0.0, 1.0)


class TestJson:
    def test_keys(self, stream, feed):
        """The object has the keys that the command documents; every bucket is there."""
        recorded = feed(train(stream().start(1).span("x", 1, 3, badput_type="sdc"), 2, 3).end(23)).result().to_json()
        assert (
            list(recorded)
            == """
            session elapsed_s productive_s goodput badput_s named_badput_s informational_s excluded_s attempts
            disruptions last_step step_time ranks
        """.split()
        )
        assert set("ideal_s p50_s p90_s p99_s deviation_s".split()) <= set(recorded["step_time"])
        assert recorded["badput_s"].pop("CUSTOM_BADPUT_EVENTS") == {"sdc": 2e-9}
        assert sum(recorded["badput_s"].values()) == 0.0
        assert recorded["ranks"][0]["rank"] == 0

    @pytest.mark.parametrize(
        ("kind", "bucket"),
        [("PROGRAM_STARTUP", "PROGRAM_STARTUP"), ("TPU_INITIALIZATION", "ACCELERATOR_INITIALIZATION")],
    )
    def test_peers_buckets(self, stream, feed, kind, bucket):
        """A span marked with the name of one of ml-goodput's buckets is in that bucket, beside the detected time."""
        one = stream().start(1).span("compile", 1, 6, badput_type=kind)
        one.step(0, 6, 16).step(1, 16, 20).step(2, 20, 24)
        result = feed(one.end(24)).result()
        found = {"PROGRAM_STARTUP": 6, "PRODUCTIVE": 12}  # the first step takes 6 ns more than the others
        assert result.spent_ns == {**found, bucket: found.get(bucket, 0) + 5}

    @pytest.mark.parametrize(
        ("reason", "last"),
        [("exit", 1), ("job_end_time", 1), ("end of file", 1), ("RuntimeError", 0), ("KeyboardInterrupt", 0)],
    )
    def test_last_step_without_an_end(self, stream, feed, reason, last):
        """A step of which only the start is recorded is completed by a good end, and not by an exception."""
        one = stream().start(1).step_start(0, 10).step_start(1, 20).end(30, reason=reason)
        result = feed(one).result()
        assert result.last_step == last
        assert result.spent_ns["PRODUCTIVE"] == 10 * (last + 1)

    def test_startup_of_steps_that_count(self, stream, feed):
        """The first step is compared with the steps that no later attempt did again."""
        first = stream(attempt=0).start(1).step(0, 1, 11).step(1, 11, 15).step(2, 15, 95)
        again = stream(attempt=1).start(100).step(2, 100, 104).step(3, 104, 108).end(108)
        assert feed(first, again).result().spent_ns["PROGRAM_STARTUP"] == 10 - 4

    def test_problems(self, stream, feed):
        """Faults in the input are reported in every result."""
        assert feed(stream().start(1).step(0, 1, 5)).result().to_json()["problems"] == {
            "an attempt without an end: it runs, or fell silent": 1
        }

    def test_plain(self, stream, feed):
        """The result is plain data all through."""
        result = feed(train(stream().start(1), 3)).result()
        assert json.loads(json.dumps(result.to_json())) == result.to_json()
        assert json.dumps(attrs.asdict(attrs.evolve(result, spent_ns={})))


class TestState:
    def test_wire(self, stream, feed):
        """The state is plain data within the limits of the wire."""
        model = feed(train(stream().start(1), 3_000, length=12_345))
        data = msgpack.packb(model.dump())
        other = GoodputAccumulator()
        other.load(msgpack.unpackb(data))
        assert other.result() == model.result()

    @pytest.mark.parametrize(
        "damage",
        [
            lambda state: None,
            lambda state: [],
            lambda state: {},
            lambda state: {**state, "version": 1},
            lambda state: {**state, "processes": [{}]},
            lambda state: {**state, "processes": [{**state["processes"][0], "tracks": [1, 2]}]},
            lambda state: {**state, "processes": [{**state["processes"][0], "steps": []}]},
            lambda state: {**state, "missed": "many"},
        ],
    )
    def test_not_a_state(self, stream, feed, damage):
        """Any other state is refused, and the model stays as it was."""
        model = feed(train(stream().start(1), 3_000))
        before = model.dump()
        with pytest.raises(DecodeError):
            model.load(damage(model.dump()))
        assert model.dump() == before

    @pytest.mark.parametrize("index", range(6))
    def test_damaged_block(self, stream, feed, index):
        """A packed block whose parts do not fit together is refused, before any memory is allocated for it."""
        state = feed(train(stream().start(1), 3_000)).dump()
        block = state["processes"][0]["tracks"][0][0][0]
        block[index] = {0: "x", 1: 1 << 40, 2: None, 3: [], 4: [0, 9] * 4, 5: b"short"}[index]
        with pytest.raises(DecodeError):
            GoodputAccumulator().load(state)


class TestGrowth:
    def test_memory(self, stream):
        """A step takes at most 16 bytes, its loading included."""
        job = stream()
        model = GoodputAccumulator()
        at = 10**18

        def train(steps):
            nonlocal at
            for step in steps:
                job.span("data_loading", at, at + 10**5 + step * 7919 % 10**6)
                job.step(step, at + 2 * 10**6, at := at + 3 * 10**8 + step * 104_729 % 10**7)
                for event in job.events:
                    event._seq = None
                    model(event)
                job.events.clear()

        train(range(2_000))  # what is kept once and for all
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            train(range(2_000, 42_000))
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (after - before) / 40_000 < 16

    def test_one_more_event(self, stream, monkeypatch):
        """The result after one more event reads none of the packed blocks, however many there are."""
        job = train(stream().start(1), 20_000)
        model = GoodputAccumulator()
        for event in job.events:
            model(event)
        model.result()
        unpacked = []
        monkeypatch.setattr(_packed.Block, "slices", lambda self: unpacked.append(self))
        for event in train(job, 3, 200_001, first=20_000).events[-3:]:
            model(event)
            assert model.result().last_step == event.step
        assert unpacked == []

    def test_open_part_is_bounded(self, stream):
        """The number of unpacked slices is bounded."""
        model = GoodputAccumulator()
        for event in train(stream().start(1), 20_000).events:
            model(event)
        assert len(model._processes["p0-0"].track._starts) < 2 * _track.BLOCK


class TestReplay:
    def test_frames(self, stream, feed):
        """A state that was dumped and loaded gives the same result."""
        job = train(stream().start(1), 100).span("x", 500, 700, badput_type="sdc").end(1_001)
        model = GoodputAccumulator()
        for event in FrameDecoder().decode(frame_of("p0-0", job.events)).events:
            model(recorded(event, source=Source.from_wire(job.source.to_wire()), seq=event.seq))
        assert model.result() == feed(job).result()
