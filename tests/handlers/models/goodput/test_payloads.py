"""ml-goodput-measurement's records, read as events."""

from __future__ import annotations

import json
import random

import pytest

from trackside.events import (
    ProfileSpanEnded,
    RecordFaulted,
    SlicesCounted,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    SpanStarted,
    StepStarted,
)
from trackside.handlers.models.goodput import GoodputAccumulator, read_payloads

pytestmark = pytest.mark.once

START_NS = 1_704_070_800 * 10**9


@pytest.fixture
def read(records):
    """Give a function that returns the events of the records written so far."""
    return lambda: list(read_payloads(records.payloads))


def problems(records):
    recorded = records.result().problems
    return {name: n for name, n in recorded.items() if name != "an attempt without an end: it runs, or fell silent"}


class TestRecords:
    def test_each(self, records, read):
        """Each record becomes the event of the same meaning."""
        records.job(0).pair("tpu_init", 1, 2).pair("training_prep", 2, 3).pair("data_loading", 3, 4)
        records.put(step_count=7, step_start_time=4).custom("eval", 5, 6)
        records.pair("elastic_wait", 6, 7, elastic_wait_event_type="Scale_Up now").pair("elastic_reinit", 7, 8)
        records.put(active_slices=1, total_slices=2, available_slices=2, elastic_slice_counts_timestamp=8)
        records.orbax("save", 7, 8, 1.5, "checkpoint_manager_blocking").end(10)
        kinds = [type(event) for event in read()]
        pair = [SpanStarted, SpanEnded]
        assert kinds == [
            SourceStarted, *pair, *pair, ProfileSpanEnded, StepStarted, *pair, *pair, *pair,
            SlicesCounted, SpanEnded, SourceEnded,
        ]  # fmt: skip

    def test_floats(self, records, read):
        """Counts that come as floats, as Google Cloud Logging gives all numbers back, are counts; 1.5 is none."""
        records.job(0).put(active_slices=1, total_slices=2, available_slices=2, elastic_slice_counts_timestamp=1)
        records.put(step_count=0, step_start_time=2).put(step_count=1, step_start_time=3)
        records.orbax("save", 1, 3, 1.5, "checkpoint_manager_blocking").job(6).put(step_count=1, step_start_time=7)
        expected = [str(event) for event in read()]
        as_they_come = json.loads(json.dumps(records.payloads), parse_int=float)
        assert as_they_come[2]["step_count"].__class__ is float
        assert [str(event) for event in read_payloads(as_they_come)] == expected
        records.put(step_count=1.5, step_start_time=8)
        assert problems(records) == {"a step record without a whole number": 1}

    def test_times(self, records, read):
        """Times are exact to the microsecond, in spite of the rounding of floats."""
        rng = random.Random(1)
        moments = [rng.randrange(10**12) / 10**6 for _ in range(1_000)]
        records.job(0)
        for step, at in enumerate(sorted(moments)):
            records.put(step_count=step, step_start_time=at)
        found = [event.at_ns - START_NS for event in read()[1:]]
        assert found == [round(at * 10**6) * 1_000 for at in sorted(moments)]

    def test_identity(self, records, read):
        """A job's name is its session; attempts are numbered by job starts, events by attempt."""
        records.job(0).put(step_count=0, step_start_time=1).job(5).put(step_count=0, step_start_time=6)
        found = [(event.source.session_tag, event.source.attempt, event.seq) for event in read()]
        assert found == [("job", 0, 0), ("job", 0, 1), ("job", 1, 0), ("job", 1, 1)]

    def test_jobs(self, records):
        """Each name in one log is a session of its own."""
        records.job(0).steps(range(3), 0)
        records.name = "other"
        records.job(2).steps(range(3), 2)
        assert records.model().sessions() == ["job", "other"]

    def test_json(self, records):
        """A log that went through JSON gives the same events."""
        records.job(0).pair("tpu_init", 0, 1.25)
        records.end(records.steps(range(5), 1.25))
        expected = records.result()
        records.payloads = json.loads(json.dumps(records.payloads))
        assert records.result() == expected

    def test_late_checkpoint(self, records):
        """A checkpoint recorded after the restart belongs to the attempt that made it."""
        records.job(0).steps(range(5), 0)
        records.job(20).steps(range(3, 5), 20)
        records.orbax("save", 1, 4, 1.0, "checkpoint_manager_blocking").end(26)
        result = records.result()
        assert (result.badput_s["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"], result.attempts) == (1.0, 2)

    @pytest.mark.parametrize("event_type", ["restore", "emergency_restore"])
    def test_restores(self, records, event_type):
        """Both kinds of restore are restores."""
        records.job(0).orbax(event_type, 1, 1, 2.0, "checkpoint_manager").end(4)
        assert records.result().badput_s["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"] == 2.0

    def test_several_hosts(self, records):
        """One save recorded by several hosts blocks once."""
        records.job(0).steps(range(2), 0, length=10)
        for _ in range(4):
            records.orbax("save", 1, 12, 3.0, "checkpoint_manager_blocking")
        assert records.end(20).result().badput_s["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == 3.0


class TestAttempts:
    def test_cut_log(self, records):
        """A log whose beginning is missing begins with its first record."""
        records.end(records.steps(range(100, 105), 50))
        assert (records.result().productive_s, records.result().elapsed_s) == (15.0, 15.0)
        assert problems(records) == {"an attempt without a job start": 1}

    def test_initialized_again(self, records):
        """An initialization after steps shows that the job was started again."""
        records.job(0).steps(range(5), 0)
        records.pair("tpu_init", 20, 22).end(records.steps(range(3, 5), 22))
        result = records.result()
        assert (result.attempts, result.badput_s["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"]) == (2, 8.0)

    def test_resized(self, records):
        """Within an elastic re-initialization it does not."""
        records.job(0).steps(range(5), 0)
        records.put(elastic_reinit_start_time=13).pair("tpu_init", 14, 16).put(elastic_reinit_end_time=18)
        records.end(records.steps(range(5, 7), 18))
        result = records.result()
        assert (result.attempts, result.badput_s["ELASTIC_REINITIALIZATION"]) == (1, 5.0)

    def test_after_the_end(self, records):
        """Records after the job's end are another attempt."""
        records.job(0).end(records.steps(range(2), 0))
        records.steps(range(2, 4), 20)
        assert records.result().attempts == 2

    def test_cut_off_span(self, records):
        """A span that an attempt began and did not end, ended with it."""
        records.job(0).put(training_prep_start_time=1).put(step_count=0, step_start_time=4)
        records.job(10).pair("training_prep", 10, 12)
        assert records.result().badput_s["TRAINING_PREP"] == 3.0 + 2.0


class TestFaults:
    @pytest.mark.parametrize("time", ["2024-01-01T00:00:00", None, True, -1.0, 0.0, float("nan"), float("inf"), 1e18])
    def test_impossible_time(self, records, time):
        """A time that is no number of seconds since the epoch, as one without a zone, is named; the rest counts."""
        records.job(0).steps(range(2), 0)
        records.payloads.append({"job_name": "job", "step_count": 9, "step_start_time": time})
        records.end(6)
        assert records.result().productive_s == 6.0
        assert problems(records) == {"a record whose time is no number of seconds since the epoch": 1}

    @pytest.mark.parametrize(
        ("payload", "problem"),
        [
            ({"job_name": "job", "color": "red"}, "a record with unknown keys"),
            ({"event_type": "delete", "step": 1}, "a record with unknown keys"),
            ({"event_type": "save", "step": 1}, "a checkpoint record without a start and a duration"),
            ({"job_name": "job", "step_count": "7", "step_start_time": 1.7e9}, "a step record without a whole number"),
            ({"job_name": "job", "tpu_init_end_time": 1_704_070_803.0}, "an end without a start"),
            ([1, 2], "a record that is no object"),
            (None, "a record that is no object"),
        ],
    )
    def test_unusable(self, records, payload, problem):
        """A record without content is named, and the rest counts."""
        records.job(0).steps(range(2), 0)
        records.payloads.append(payload)
        records.end(6)
        assert (records.result().productive_s, problems(records)) == (6.0, {problem: 1})

    def test_more_keys(self, records):
        """A record with a key too many is named, and used."""
        records.job(0).put(step_count=0, step_start_time=0, color="red").end(6)
        assert (records.result().productive_s, problems(records)) == (6.0, {"a record with unknown keys": 1})

    def test_before_the_first_attempt(self, records):
        """A fault before the first attempt is named too."""
        records.payloads.append({"color": "red"})
        records.job(0).end(6)
        assert problems(records) == {"a record with unknown keys": 1}

    def test_started_twice(self, records):
        """Of two starts the second one counts; the length of the first one is unknown."""
        records.job(0).put(tpu_init_start_time=1).put(tpu_init_start_time=4).put(tpu_init_end_time=6).end(8)
        result = records.result()
        assert (result.badput_s["ACCELERATOR_INITIALIZATION"], result.elapsed_s) == (2.0, 8.0)
        assert problems(records) == {"a start without an end": 1}

    def test_quoted(self, read, records):
        """A fault quotes the record, or enough of it to identify it."""
        records.job(0).payloads.append({"job_name": "job", "color": "red" * 1_000})
        fault = read()[-1]
        assert isinstance(fault, RecordFaulted)
        assert fault.record.startswith("{'job_name': 'job', 'color': 'redred")
        assert len(fault.record) == 200

    def test_shuffled(self, records, seed):
        """A log in any order gives every second a bucket."""
        for history in range(100):
            rng = random.Random(seed + history)
            log = type(records)()
            log.job(0).pair("tpu_init", 0, 1).custom("eval", 5, 7)
            log.steps(range(8), 1)
            log.job(30).pair("data_loading", 31, 32).end(log.steps(range(4, 8), 32))
            rng.shuffle(log.payloads)
            result = log.result()
            assert (history, sum(result.spent_ns.values())) == (history, result.end_ns - result.start_ns)

    def test_random(self, seed):
        """A record with any content is read without an exception."""
        rng = random.Random(seed)
        keys = """
            job_name job_start_time job_end_time step_count step_start_time tpu_init_start_time tpu_init_end_time
            custom_badput_event_type custom_badput_event_start_time event_type step active_slices
            checkpoint_manager_start_time checkpoint_manager_duration_secs elastic_slice_counts_timestamp
        """.split()
        values = ["job", "save", 1.7e9, 1.7e9 + 5, 7, -1, None, [], {}, "x", 1e400, True]
        payloads = [{rng.choice(keys): rng.choice(values) for _ in range(rng.randrange(5))} for _ in range(5_000)]
        model = GoodputAccumulator()
        for event in read_payloads(payloads):
            model(event)
        assert model.sessions()
