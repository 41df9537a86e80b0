"""
Trackside's account beside ml-goodput-measurement's, on random jobs of the family where the latter's formula is sound.

The model's first, then the peer's own calls under `trackside.compat.goodput`.

That family, for which `make_job` generates records:

- Each attempt writes its job start; no attempt begins before the last one fell silent, and the job ends.
- Steps are numbered one by one, from any number, and take at least 1 ms. An attempt resumes at a step that the last one
  has begun, above its first one and above zero, so that the peer notices; nothing is recorded after an attempt's last
  step start.
- Initialization and preparation come at most once each in an attempt, before its first step, and do not overlap. There
  are no loads, or one before the first step of each of the first two attempts: the peer counts later ones twice.
- Each attempt has steps. One that is followed by another has at least one before that at which the other resumes.
- Custom events lie within one step each, be it the first one or one that is lost, and do not overlap.
- Checkpoints are restored before an attempt's first step. They are saved in attempts whose first step is the shortest,
  within a step that counts and without custom events, once for each step: the peer takes a save from the productive
  time, and not from the step's.
- No elastic waits, no exclusions, no hang.
"""

from __future__ import annotations

import datetime
import inspect
import json
import random

import pytest

from trackside.compat.goodput import goodput as our_goodput
from trackside.compat.goodput import goodput_elastic as our_elastic
from trackside.compat.goodput import goodput_utils as our_utils
from trackside.compat.goodput._monitor import UploadingMonitor
from trackside.handlers.models.goodput import GoodputAccumulator, read_payloads

pytestmark = pytest.mark.integration

goodput = pytest.importorskip("ml_goodput_measurement.src.goodput")
goodput_utils = pytest.importorskip("ml_goodput_measurement.src.goodput_utils")

elastic = pytest.importorskip("ml_goodput_measurement.src.goodput_elastic")
monitoring = pytest.importorskip("ml_goodput_measurement.src.monitoring")

UTC = datetime.timezone.utc
JOBS = 200
COMPAT_JOBS = 40
START_S = 1_704_070_800.0
NAMES = {"TPU_INITIALIZATION": "ACCELERATOR_INITIALIZATION"}


class Log:
    """Stands in for the cloud's log: keeps payloads by their times."""

    def __init__(self, payloads):
        stamp = goodput_utils.get_timestamp_from_log_entry
        self.entries = [(stamp(payload), payload) for payload in payloads]
        self.last_entry_info = (self.entries[-1][0], "last")

    def write_cloud_logging_entry(self, entry):
        """Record nothing."""

    def read_cloud_logging_entries(self, start_time=None, end_time=None, last_entry_info=None):
        """Return the payloads after *start_time* and up to *end_time*."""
        found = [
            payload
            for at, payload in self.entries
            if (start_time is None or at > start_time) and (end_time is None or at <= end_time)
        ]
        return found, self.last_entry_info


class Job:
    """A generator of jobs of the family that the module describes."""

    def __init__(self, rng, *, has_events=True, loads_each_step=False):
        self.rng = rng
        self.has_events = has_events
        self.loads_each_step = loads_each_step
        self.now = 0.0
        self.payloads = []

    def put(self, **payload):
        """Write a record."""
        times = {key: START_S + value for key, value in payload.items() if key.endswith("_time")}
        self.payloads.append({"job_name": "job", **payload, **times})

    def pass_s(self, least, most):
        """Let some time pass, in whole ms."""
        self.now = round(self.now + self.rng.randint(round(least * 1e3), round(most * 1e3)) / 1e3, 3)
        return self.now

    def pair(self, what):
        """Write a start and an end."""
        self.put(**{f"{what}_start_time": self.pass_s(0, 2)})
        self.put(**{f"{what}_end_time": self.pass_s(0.001, 5)})

    def make(self):
        """Return the records of a whole job."""
        rng = self.rng
        first = rng.choice((0, 0, 1, 1000))
        attempts = rng.randint(1, 6)
        loads = attempts if self.loads_each_step else rng.choice((0, 2))
        for attempt in range(attempts):
            is_last = attempt == attempts - 1
            count = rng.randint(5, 30)
            resumed = first + (count if is_last else rng.randint(1, count - 1))
            self.attempt(first, count, resumed, restores=attempt > 0, loads=attempt < loads)
            first = resumed
        self.put(job_end_time=self.pass_s(0.001, 5))
        return self.payloads

    def attempt(self, first, count, resumed, *, restores, loads):
        """Write an attempt of *count* steps, of which those from *resumed* on will be lost."""
        rng = self.rng
        self.put(job_start_time=self.pass_s(0, 30))
        for what in ("tpu_init", "training_prep"):
            if rng.random() < 0.8:
                self.pair(what)
        if restores and self.has_events and rng.random() < 0.5:
            self.restore(first)
        if loads:
            self.pair("data_loading")
        self.pass_s(0, 3)
        saves = rng.random() < 0.4
        usual = rng.randint(20, 4_000) / 1e3
        for index in range(count):
            self.put(step_count=first + index, step_start_time=self.now)
            if index == count - 1:
                return
            length = round(usual + rng.randint(0, 500) / 1e3, 3)
            counts = index > 0 and first + index < resumed
            if index == 0 and (saves or rng.random() < 0.7):
                self.now = round(self.now + (0.001 if saves else usual + rng.randint(-10, 9_000) / 1e3), 3)
            elif self.has_events and counts and saves and rng.random() < 0.3:
                self.save(first + index, length)
            elif self.has_events and not saves and rng.random() < 0.3:
                for _ in range(rng.choice((1, 1, 3))):
                    self.custom(length if index else length + usual)
            else:
                self.now = round(self.now + length, 3)
            if self.loads_each_step:
                self.put(data_loading_start_time=self.now)
                self.put(data_loading_end_time=self.pass_s(0.001, 0.5))

    def restore(self, step):
        """Write that a checkpoint is restored."""
        start_s, duration_s = START_S + self.now, self.rng.randint(1, 9_000) / 1e3
        self.put(
            event_type="restore",
            step=step,
            directory="gs://bucket/path",
            checkpointer_duration_secs=duration_s,
            checkpoint_manager_duration_secs=duration_s,
        )
        self.payloads[-1].update(checkpointer_start_time=start_s, checkpoint_manager_start_time=start_s)
        self.now = round(self.now + duration_s, 3)

    def custom(self, length):
        """Do a step with a custom event in it."""
        rng = self.rng
        before = round(length * rng.random(), 3)
        kind = rng.choice(("EVAL", "SDC CHECK", "COMPILE"))
        self.now = round(self.now + before, 3)
        self.put(custom_badput_event_type=kind, custom_badput_event_start_time=self.now)
        self.put(custom_badput_event_type=kind, custom_badput_event_end_time=self.pass_s(0.001, 9))
        self.now = round(self.now + length - before, 3)

    def save(self, step, length):
        """Do a step with a save in it, besides its own time."""
        duration = self.rng.randint(1, 900) / 1e3
        self.payloads.append(
            {
                "event_type": "save",
                "step": step,
                "directory": "gs://bucket/path",
                "wait_for_prev_start_time": START_S + self.now,
                "wait_for_prev_duration_secs": 0.0,
                "checkpointer_blocking_start_time": START_S + self.now,
                "checkpointer_blocking_duration_secs": duration,
                "get_old_steps_start_time": START_S + self.now,
                "get_old_steps_duration_secs": 0.0,
                "checkpoint_manager_blocking_start_time": START_S + self.now,
                "checkpoint_manager_blocking_duration_secs": duration,
            }
        )
        self.now = round(self.now + length + duration, 3)


def theirs(payloads, directory):
    """Return the peer's results: share of each bucket, last step, disruptions."""
    calculator = goodput.GoodputCalculator("job", "log", Log(payloads), cache_dir=str(directory))
    share, badput, last_step = calculator.get_job_goodput(include_badput_breakdown=True)
    found = {"PRODUCTIVE": share}
    for kind, value in badput.items():
        if isinstance(value, dict):
            found.update(value)
        elif kind.name != "DATA_LOADING_ASYNC":
            found[NAMES.get(kind.name, kind.name)] = value
    details = calculator.get_job_goodput_details()
    found = {bucket: value / 100 for bucket, value in found.items() if value}
    return found, last_step, details["disruption_count"]


def ours(payloads):
    """Return trackside's results in the same form."""
    model = GoodputAccumulator()
    for event in read_payloads(payloads):
        model(event)
    result = model.result()
    found = {"PRODUCTIVE": result.productive_s, **result.badput_s, **result.badput_s["CUSTOM_BADPUT_EVENTS"]}
    del found["CUSTOM_BADPUT_EVENTS"]
    found = {bucket: value / result.elapsed_s for bucket, value in found.items() if value}
    return found, result.last_step, result.disruptions


class TestSideBySide:
    @pytest.mark.parametrize("number", range(JOBS))
    def test_same_answer(self, request, number, tmp_path):
        """On jobs for which the peer's formula is sound, goodput and every bucket agree to 1e-6."""
        payloads = Job(random.Random(request.config.option.seed * JOBS + number)).make()
        their_shares, their_last_step, their_disruptions = theirs(payloads, tmp_path)
        our_shares, our_last_step, our_disruptions = ours(payloads)

        assert our_shares == pytest.approx(their_shares, abs=1e-6)
        assert (our_last_step, our_disruptions) == (their_last_step, their_disruptions)

    def test_later(self, request, tmp_path):
        """The same holds while the job is running, after any record before its first disruption."""
        payloads = Job(random.Random(request.config.option.seed)).make()
        stop = [place for place, payload in enumerate(payloads) if "step_count" in payload][4] + 1
        now = datetime.datetime.now(datetime.timezone.utc)
        log = Log(payloads[:stop])
        calculator = goodput.GoodputCalculator("job", "log", log, cache_dir=str(tmp_path))
        share, _, _ = calculator.get_job_goodput()
        model = GoodputAccumulator()
        for event in read_payloads(payloads[:stop]):
            model(event)
        result = model.result(end_ns=int(now.timestamp() * 1e9))

        # The peer's clock read a moment later than ours, on a job that seems to have been hanging for years.
        assert result.productive_s / result.elapsed_s == pytest.approx(share / 100, rel=1e-6)


class Written:
    """Stands in for the cloud's log, and keeps the written entries."""

    def __init__(self):
        self.payloads = []

    def write_cloud_logging_entry(self, entry):
        """Keep *entry*."""
        self.payloads.append(entry)

    def flush(self):
        """Do nothing: entries are kept at once."""


@pytest.fixture
def both(request, tmp_path):
    """Give a function that returns the peer's calculator and trackside's on the same job."""

    def make(number, **family):
        job = Job(random.Random(request.config.option.seed * COMPAT_JOBS + number), **family)
        payloads = job.make()
        theirs = goodput.GoodputCalculator("job", "log", Log(payloads), cache_dir=str(tmp_path / "cache"))
        (tmp_path / "cache").mkdir(exist_ok=True)
        return theirs, our_goodput.GoodputCalculator("job", "log", Log(payloads)), payloads

    return make


def plain(badput):
    """Return *badput* by name, without zeros."""
    found = {}
    for kind, value in badput.items():
        parts = value if isinstance(value, dict) else {kind.name: value}
        found.update({name: part for name, part in parts.items() if part})
    found.pop("DATA_LOADING_ASYNC", None)
    return found


@pytest.mark.parametrize("number", range(COMPAT_JOBS))
class TestSameAnswers:
    def test_goodput(self, both, number):
        """Goodput, badput and the last step agree."""
        theirs, mine, _ = both(number)
        share, badput, last_step = theirs.get_job_goodput(include_badput_breakdown=True)
        our_share, our_badput, our_last_step = mine.get_job_goodput(include_badput_breakdown=True)
        assert (our_share, our_last_step) == (pytest.approx(share, abs=1e-4), last_step)
        assert plain(our_badput) == pytest.approx(plain(badput), abs=1e-4)

    def test_details(self, both, number):
        """So do the details, in seconds."""
        theirs, mine, _ = both(number)
        theirs.get_job_goodput(), mine.get_job_goodput()
        details, our_details = theirs.get_job_goodput_details(), mine.get_job_goodput_details()
        assert set(our_details) == set(details)
        for key in ("max_productive_step", "disruption_count", "total_excluded_time"):
            assert our_details[key] == details[key]
        assert our_details["total_elapsed_time"] == pytest.approx(details["total_elapsed_time"], abs=1e-5)
        (length,) = details["goodput_time"].values()
        assert [*our_details["goodput_time"].values()] == [pytest.approx(length, abs=1e-5)]

    def test_whole_interval(self, both, number):
        """An interval that holds all of the job has the job's goodput."""
        theirs, mine, payloads = both(number)
        last_s = payloads[-1]["job_end_time"]
        # The peer leaves out records of the very moment at which the interval begins.
        bounds = [datetime.datetime.fromtimestamp(second, UTC) for second in (START_S - 1, last_s)]
        share, badput, last_step, total_s, disruptions = theirs.get_job_goodput_interval(*bounds)
        our_share, our_badput, our_last_step, our_total_s, our_disruptions = mine.get_job_goodput_interval(*bounds)
        assert our_share == pytest.approx(share, abs=1e-4)
        assert plain(our_badput) == pytest.approx(plain(badput), abs=1e-4)
        assert (our_last_step, our_disruptions) == (last_step, disruptions)
        assert our_total_s == pytest.approx(total_s, abs=1e-5)

    def test_deviation(self, both, number):
        """If only steps come after the first one, deviations from a configured ideal agree, step by step."""
        theirs, mine, _ = both(number, has_events=False)
        found, our_found = theirs.get_step_deviation(2.0), mine.get_step_deviation(2.0)
        # The last step of the job has no later one: the peer has no time for it, trackside's ends with the job.
        assert {step: our_found[step] for step in found} == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize("number", range(COMPAT_JOBS))
class TestLoadsInEveryStep:
    def test_goodput(self, both, number):
        """A job that loads data before every step has the peer's goodput, and as much loading altogether."""
        theirs, mine, _ = both(number, has_events=False, loads_each_step=True)
        share, badput, last_step = theirs.get_job_goodput(include_badput_breakdown=True)
        our_share, our_badput, our_last_step = mine.get_job_goodput(include_badput_breakdown=True)
        assert (our_share, our_last_step) == (pytest.approx(share, abs=1e-4), last_step)
        sync, aside = (goodput_utils.BadputType[f"DATA_LOADING_{kind}"] for kind in ("SYNC", "ASYNC"))
        our_sync, our_aside = (our_utils.BadputType[f"DATA_LOADING_{kind}"] for kind in ("SYNC", "ASYNC"))
        loading = badput[sync] + badput[aside]
        assert our_badput[our_sync] + our_badput[our_aside] == pytest.approx(loading, abs=1e-4)
        if theirs.get_job_goodput_details()["disruption_count"] == 0:  # after one the peer counts a load twice
            assert our_badput[our_sync] == pytest.approx(badput[sync], abs=1e-4)


class TestStepTimes:
    @pytest.mark.parametrize("count", [5, 6, 101, 3000])
    def test_ideal(self, request, tmp_path, count):
        """The ideal step time and each step's distance from it are the peer's, up to a few thousand steps."""
        rng, at_s = random.Random(request.config.option.seed + count), START_S
        payloads = [{"job_name": "job", "job_start_time": at_s}]
        for step in range(count):
            payloads.append({"job_name": "job", "step_count": step, "step_start_time": at_s})
            at_s = round(at_s + 1 + rng.lognormvariate(0, 1), 6)
        theirs = goodput.GoodputCalculator("job", "log", Log(payloads), cache_dir=str(tmp_path))
        mine = our_goodput.GoodputCalculator("job", "log", Log(payloads))
        theirs.get_job_goodput(), mine.get_job_goodput()
        found, our_found = theirs.get_step_deviation(), mine.get_step_deviation()
        details, our_details = theirs.get_job_goodput_details(), mine.get_job_goodput_details()
        assert our_details["ideal_step_time"] == pytest.approx(details["ideal_step_time"], rel=1e-6)
        assert our_found == pytest.approx(found, abs=1e-5)


class TestClocks:
    def records(self, start_s, *, extra=()):
        """Return the records of five steps of 3 s, 8 s the last, with *extra* ones before them."""
        steps = [{"step_count": step, "step_start_time": start_s + 3 * step} for step in range(5)]
        payloads = [{"job_start_time": start_s}, *extra, *steps, {"job_end_time": start_s + 20}]
        return [{"job_name": "job", **payload} for payload in payloads]

    def test_ahead(self, tmp_path):
        """Records of a machine whose clock is ahead of the reader's are used."""
        payloads = self.records(round(datetime.datetime.now(UTC).timestamp()) + 3600)
        log = Log(payloads)
        log.read_cloud_logging_entries = lambda *_, **__: (payloads, log.last_entry_info)
        theirs = goodput.GoodputCalculator("job", "log", log, cache_dir=str(tmp_path))
        mine = our_goodput.GoodputCalculator("job", "log", log)
        assert mine.get_job_goodput()[0] == pytest.approx(theirs.get_job_goodput()[0]) == pytest.approx(100.0)

    def test_1970(self):
        """One record of a machine whose clock was never set leaves goodput as it is without it."""
        stray = {"job_name": "job", "data_loading_start_time": 12.0}
        shares = [
            our_goodput.GoodputCalculator("job", "log", Log(payloads)).get_job_goodput()[0]
            for payloads in (self.records(START_S), self.records(START_S, extra=[stray]))
        ]
        assert shares == [100.0, 100.0]


class TestExclusions:
    def test_steps(self, tmp_path):
        """With parts of steps excluded both agree: the first step is compared with the remaining parts."""
        payloads = [{"job_name": "job", "job_start_time": START_S}]
        starts = [0.0, 10.0, 14.0, 20.0, 25.0, 31.0]
        payloads += [
            {"job_name": "job", "step_count": step, "step_start_time": START_S + start}
            for step, start in enumerate(starts)
        ]
        theirs = goodput.GoodputCalculator("job", "log", Log(payloads), cache_dir=str(tmp_path))
        mine = our_goodput.GoodputCalculator("job", "log", Log(payloads))
        intervals = [
            (datetime.datetime.fromtimestamp(START_S + start, UTC), datetime.datetime.fromtimestamp(START_S + end, UTC))
            for start, end in [(2.0, 4.0), (21.0, 24.0)]
        ]
        _, _, last_step, excluded_s = theirs.get_job_goodput_with_exclusions(intervals, True)
        _, _, our_last_step, our_excluded_s = mine.get_job_goodput_with_exclusions(intervals, True)
        assert (our_excluded_s, our_last_step) == (excluded_s, last_step)
        startup = our_utils.BadputType.PROGRAM_STARTUP
        theirs_s = theirs.get_job_goodput_details()["badput_time"][goodput_utils.BadputType.PROGRAM_STARTUP]
        # By hand: 10 s less 2 s, over the mean of 4, 6, 5 less 3, and 6 s.
        assert mine.get_job_goodput_details()["badput_time"][startup] == pytest.approx(theirs_s) == 8 - 18 / 4

    def test_outage(self, tmp_path):
        """Excluding part of an outage agrees."""
        payloads = [{"job_name": "job", "job_start_time": START_S}]
        for first, start in [(0, 0.0), (3, 60.0)]:
            if start:
                payloads.append({"job_name": "job", "job_start_time": START_S + start})
            for place in range(6):
                at_s = START_S + start + 3.0 * place
                payloads.append({"job_name": "job", "step_count": first + place, "step_start_time": at_s})
        payloads.append({"job_name": "job", "job_end_time": START_S + 78.0})
        theirs = goodput.GoodputCalculator("job", "log", Log(payloads), cache_dir=str(tmp_path))
        mine = our_goodput.GoodputCalculator("job", "log", Log(payloads))
        intervals = [
            (datetime.datetime.fromtimestamp(START_S + start, UTC), datetime.datetime.fromtimestamp(START_S + end, UTC))
            for start, end in [(20.0, 30.0), (25.0, 50.0)]
        ]
        share, badput, last_step, excluded_s = theirs.get_job_goodput_with_exclusions(intervals, True)
        our_share, our_badput, our_last_step, our_excluded_s = mine.get_job_goodput_with_exclusions(intervals, True)
        assert (our_excluded_s, our_last_step) == (excluded_s, last_step)
        assert our_share == pytest.approx(share, abs=1e-4)
        assert plain(our_badput) == pytest.approx(plain(badput), abs=1e-4)


class TestDifferences:
    """The differences: a job for each row of the table in docs/compatibility.md."""

    def job(self, *attempts, end_s, more=()):
        """Return records: of each attempt its start and its steps, by number and second; *more*, in their places."""
        records = []
        for start_s, steps in attempts:
            records.append((start_s, {"job_start_time": START_S + start_s}))
            records += [(at_s, {"step_count": step, "step_start_time": START_S + at_s}) for step, at_s in steps]
        records += [*more, (end_s, {"job_end_time": START_S + end_s})]
        return [{"job_name": "job", **payload} for _, payload in sorted(records, key=lambda one: one[0])]

    def answers(self, payloads, directory):
        """Return the seconds of each bucket that is not zero, and the last step: theirs, ours."""
        found = []
        for cls, options in (
            (goodput.GoodputCalculator, {"cache_dir": str(directory)}),
            (our_goodput.GoodputCalculator, {}),
        ):
            calculator = cls("job", "log", Log(payloads), **options)
            calculator.get_job_goodput(include_badput_breakdown=True)
            details = calculator.get_job_goodput_details()
            (productive_s,) = details["goodput_time"].values()
            seconds = {"PRODUCTIVE": productive_s, **plain(details["badput_time"])}
            found.append(
                ({kind: round(value, 6) for kind, value in seconds.items() if value}, details["max_productive_step"])
            )
        return found

    def test_from_zero(self, tmp_path):
        """A restart from step 0 loses all steps before it; theirs calls them OTHER."""
        steps = [(step, 5.0 + 3 * step) for step in range(4)]
        again = [(step, 35.0 + 3 * step) for step in range(4)]
        (theirs, _), (ours, _) = self.answers(self.job((0.0, steps), (30.0, again), end_s=47.0), tmp_path)
        assert "WASTED_PROGRESS_FROM_DISRUPTION" not in theirs
        # Three steps of 3 s that ended; the fourth one was in progress when the attempt fell silent.
        assert ours["WASTED_PROGRESS_FROM_DISRUPTION"] == 9.0
        assert (theirs["PRODUCTIVE"], ours["PRODUCTIVE"]) == (12.0, 12.0)

    def test_right_behind(self, tmp_path):
        """A restart that goes on behind the last step is a disruption; theirs takes the outage for a long step."""
        steps = [(step, 5.0 + 3 * step) for step in range(4)]
        again = [(step, 35.0 + 3 * (step - 4)) for step in range(4, 8)]
        (theirs, _), (ours, _) = self.answers(self.job((0.0, steps), (30.0, again), end_s=47.0), tmp_path)
        assert "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION" not in theirs
        # From the last step's start, the last sign of life, to the next start.
        assert ours["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] == 30.0 - 14.0
        assert theirs["PRODUCTIVE"] == 42.0
        assert ours["PRODUCTIVE"] == 9.0 + 12.0

    def test_overlap(self, tmp_path):
        """A second that is both initialization and preparation counts once; theirs counts it twice."""
        more = [
            (0.0, {"tpu_init_start_time": START_S}),
            (1.0, {"training_prep_start_time": START_S + 1}),
            (4.0, {"tpu_init_end_time": START_S + 4}),
            (5.0, {"training_prep_end_time": START_S + 5}),
        ]
        steps = [(step, 5.0 + 3 * step) for step in range(4)]
        (theirs, _), (ours, _) = self.answers(self.job((0.0, steps), end_s=17.0, more=more), tmp_path)
        assert theirs["TPU_INITIALIZATION"] + theirs["TRAINING_PREP"] == 8.0
        assert ours["TPU_INITIALIZATION"] + ours["TRAINING_PREP"] == 5.0

    def test_custom_over_steps(self, tmp_path):
        """A custom event that begins in one step and ends in another counts; theirs drops it."""
        more = [
            (9.0, {"custom_badput_event_type": "EVAL", "custom_badput_event_start_time": START_S + 9}),
            (12.0, {"custom_badput_event_type": "EVAL", "custom_badput_event_end_time": START_S + 12}),
        ]
        steps = [(step, 5.0 + 3 * step) for step in range(5)]
        (theirs, _), (ours, _) = self.answers(self.job((0.0, steps), end_s=20.0, more=more), tmp_path)
        assert "EVAL" not in theirs
        assert (ours["EVAL"], theirs["PRODUCTIVE"]) == (3.0, 15.0)
        # The first step takes 3 s; those after it, of their own, 1, 2 and 3 s.
        assert (ours["PROGRAM_STARTUP"], ours["PRODUCTIVE"]) == (1.0, 15.0 - 3.0 - 1.0)

    def pair(self, payloads, directory):
        """Return the peer's calculator and trackside's over the same records."""
        theirs = goodput.GoodputCalculator("job", "log", Log(payloads), cache_dir=str(directory))
        return theirs, our_goodput.GoodputCalculator("job", "log", Log(payloads))

    def with_a_save(self):
        """Return a job whose first step takes 10 s and whose others 3 s, one of them with a save of 2 s besides."""
        saving = Job(random.Random(0))
        saving.now = 19.0
        saving.save(2, 0.0)
        (save,) = saving.payloads
        for key in ("checkpointer_blocking_duration_secs", "checkpoint_manager_blocking_duration_secs"):
            save[key] = 2.0
        starts = [5.0, 15.0, 18.0, 23.0, 26.0]
        return self.job((0.0, list(enumerate(starts))), end_s=29.0, more=[(19.0, save)])

    def test_save_in_a_step(self, tmp_path):
        """The first step is compared with the own times of the others; with the peer, with the saves in them."""
        (theirs, _), (ours, _) = self.answers(self.with_a_save(), tmp_path)
        assert theirs["PROGRAM_STARTUP"] == pytest.approx(10 - (3 + 5 + 3) / 3, abs=1e-5)
        assert ours["PROGRAM_STARTUP"] == 10 - 3
        assert theirs["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == ours["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == 2.0

    def test_deviation_of_a_save(self, tmp_path):
        """A step with a save in it is no slow step; theirs calls it 2 s too long."""
        theirs, mine = self.pair(self.with_a_save(), tmp_path)
        assert theirs.get_step_deviation(3.0) == pytest.approx({0: 7.0, 1: 0.0, 2: 2.0, 3: 0.0}, abs=1e-5)
        assert mine.get_step_deviation(3.0) == pytest.approx({0: 7.0, 1: 0.0, 2: 0.0, 3: 0.0}, abs=1e-5)

    def test_ideal_of_steps_done_again(self, tmp_path):
        """The ideal is computed from all steps; the peer uses of each number the last one."""
        steps = [(step, 5.0 + 3 * step) for step in range(5)]
        again = [(step, 35.0 + 5 * (step - 2)) for step in range(2, 6)]
        theirs, mine = self.pair(self.job((0.0, steps), (30.0, again), end_s=55.0), tmp_path)
        theirs.get_job_goodput(), mine.get_job_goodput()
        # Theirs: 3, 3, 5, 5, 5; their median is 5, and so all are usual. Ours: 3, 3, 3, 3, 5, 5, 5, and 5 is slow.
        assert theirs.get_job_goodput_details()["ideal_step_time"] == pytest.approx(21 / 5)
        assert mine.get_job_goodput_details()["ideal_step_time"] == 3.0

    def test_ideal_of_short_steps(self, tmp_path):
        """After a first step of 20 s, steps of half a second have half a second for their ideal; theirs has 20 s."""
        starts = [5.0, *(25.0 + place / 2 for place in range(6))]
        theirs, mine = self.pair(self.job((0.0, list(enumerate(starts))), end_s=28.0), tmp_path)
        theirs.get_job_goodput(), mine.get_job_goodput()
        assert theirs.get_job_goodput_details()["ideal_step_time"] == 20.0
        assert mine.get_job_goodput_details()["ideal_step_time"] == 0.5

    def load(self, start_s):
        """Return the records of a load of 1 s."""
        return [
            (start_s, {"data_loading_start_time": START_S + start_s}),
            (start_s + 1, {"data_loading_end_time": START_S + start_s + 1}),
        ]

    def test_load_in_the_first_step(self, tmp_path):
        """A load within a step is a part of it, even the first load; the peer counts that second twice."""
        steps = [(step, 5.0 + 3 * step) for step in range(4)]
        (theirs, _), (ours, _) = self.answers(self.job((0.0, steps), end_s=17.0, more=self.load(6.0)), tmp_path)
        assert (theirs["PRODUCTIVE"], theirs["DATA_LOADING_SYNC"], theirs["OTHER"]) == (12.0, 1.0, 4.0)
        assert ours == {"PRODUCTIVE": 12.0, "OTHER": 5.0}

    def test_load_of_the_first_attempt(self, tmp_path):
        """A load of a job whose second attempt has none is one load; theirs counts it again at the disruption."""
        steps = [(step, 5.0 + 3 * step) for step in range(4)]
        again = [(step, 35.0 + 3 * (step - 2)) for step in range(2, 6)]
        records = self.job((0.0, steps), (30.0, again), end_s=47.0, more=self.load(1.0))
        (theirs, _), (ours, _) = self.answers(records, tmp_path)
        assert (theirs["DATA_LOADING_SYNC"], ours["DATA_LOADING_SYNC"]) == (2.0, 1.0)

    def test_save_before_a_restart(self, tmp_path):
        """A save in the last step shows that the job still lived; theirs takes that time for recovery."""
        saving = Job(random.Random(0))
        saving.now = 15.0
        saving.save(3, 0.0)
        (save,) = saving.payloads
        for key in ("checkpointer_blocking_duration_secs", "checkpoint_manager_blocking_duration_secs"):
            save[key] = 2.0
        steps = [(step, 5.0 + 3 * step) for step in range(4)]
        again = [(step, 35.0 + 3 * (step - 2)) for step in range(2, 6)]
        records = self.job((0.0, steps), (30.0, again), end_s=47.0, more=[(15.0, save)])
        (theirs, _), (ours, _) = self.answers(records, tmp_path)
        # Steps 2 and 3 began at 11 and 14 s, the save was over at 17 s, and the job came back at 30 s.
        lost, recovery = "WASTED_PROGRESS_FROM_DISRUPTION", "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
        assert (theirs[lost], theirs[recovery]) == (14.0 - 11.0, 30.0 - 14.0)
        assert (ours[lost], ours[recovery]) == (17.0 - 11.0, 30.0 - 17.0)

    def test_load_of_each_attempt(self, tmp_path):
        """A load before the first step of each of three attempts is three loads; theirs counts the third one twice."""
        attempts = [
            (
                30.0 * attempt,
                [(step, 30.0 * attempt + 5 + 3 * (step - 2 * attempt)) for step in range(first, first + 5)],
            )
            for attempt, first in enumerate((0, 2, 4))
        ]
        loads = [record for attempt in range(3) for record in self.load(30.0 * attempt + 1)]
        (theirs, _), (ours, _) = self.answers(self.job(*attempts, end_s=80.0, more=loads), tmp_path)
        assert (theirs["DATA_LOADING_SYNC"], ours["DATA_LOADING_SYNC"]) == (4.0, 3.0)

    def test_attempt_without_a_step(self, tmp_path):
        """An attempt that ends before its first step was one; theirs takes its time for the last step's."""
        steps = [(step, 5.0 + 3 * step) for step in range(5)]
        (theirs, _), (ours, _) = self.answers(self.job((0.0, steps), (30.0, []), end_s=47.0), tmp_path)
        assert theirs == {"PRODUCTIVE": 12.0 + 47.0 - 17.0, "OTHER": 5.0}
        # From the last step's start, the last sign of life, to the next start; no step came after it.
        assert ours == {"PRODUCTIVE": 12.0, "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": 13.0, "OTHER": 5.0 + 17.0}

    def test_last_step_of_a_restart(self, tmp_path):
        """The last finished step is known while the first one after a restart is running; the peer says 0."""
        steps = [(step, 5.0 + 3 * step) for step in range(5)]
        payloads = self.job((0.0, steps), (30.0, [(3, 35.0)]), end_s=99.0)[:-1]
        (_, their_last_step), (_, our_last_step) = self.answers(payloads, tmp_path)
        assert (their_last_step, our_last_step) == (0, 2)

    def test_nothing_but_other(self, tmp_path):
        """All of a job's time may be OTHER; the peer's breakdown is then empty."""
        payloads = self.job((0.0, [(0, 5.0)]), end_s=99.0)[:-1]
        theirs, mine = self.pair(payloads, tmp_path)
        assert theirs.get_job_goodput(include_badput_breakdown=True)[1][goodput_utils.BadputType.OTHER] == 0.0
        assert mine.get_job_goodput(include_badput_breakdown=True)[1][our_utils.BadputType.OTHER] == pytest.approx(
            100.0
        )

    def test_excluded_load(self, tmp_path):
        """An exclusion of 1 s in which a load lies within a step is one of 1 s; theirs is one of 2 s."""
        steps = [(step, 5.0 + 3 * step) for step in range(4)]
        theirs, mine = self.pair(self.job((0.0, steps), end_s=17.0, more=self.load(9.0)), tmp_path)
        bounds = [tuple(datetime.datetime.fromtimestamp(START_S + second, UTC) for second in (9.0, 10.0))]
        assert theirs.get_job_goodput_with_exclusions(bounds)[3] == 2.0
        assert mine.get_job_goodput_with_exclusions(bounds)[3] == 1.0
        assert theirs.get_job_goodput_details()["total_excluded_time"] == 0.0
        assert mine.get_job_goodput_details()["total_excluded_time"] == 1.0

    def test_excluded_step(self, tmp_path):
        """A step all of which is excluded leaves the mean that the first is compared with; theirs counts it as 0 s."""
        steps = list(enumerate([0.0, 10.0, 14.0, 20.0, 25.0, 31.0]))
        theirs, mine = self.pair(self.job((0.0, steps), end_s=35.0), tmp_path)
        bounds = [tuple(datetime.datetime.fromtimestamp(START_S + second, UTC) for second in (10.0, 14.0))]
        found = []
        for calculator in (theirs, mine):
            calculator.get_job_goodput_with_exclusions(bounds)
            badput = calculator.get_job_goodput_details()["badput_time"]
            found.append(next(value for kind, value in badput.items() if kind.name == "PROGRAM_STARTUP"))
        assert found == pytest.approx([10 - (0 + 6 + 5 + 6) / 4, 10 - (6 + 5 + 6) / 3])

    def test_named_as_a_bucket(self, tmp_path):
        """A custom event that has a bucket's name is of that bucket; the peer keeps it separate."""
        kind = {"custom_badput_event_type": "TPU_INITIALIZATION"}
        more = [
            (9.0, {**kind, "custom_badput_event_start_time": START_S + 9}),
            (10.0, {**kind, "custom_badput_event_end_time": START_S + 10}),
        ]
        steps = [(step, 5.0 + 3 * step) for step in range(4)]
        found = []
        for calculator in self.pair(self.job((0.0, steps), end_s=17.0, more=more), tmp_path):
            calculator.get_job_goodput()
            found.append({kind.name: one for kind, one in calculator.get_job_goodput_details()["badput_time"].items()})
        theirs, ours = found
        assert (theirs["TPU_INITIALIZATION"], theirs["CUSTOM_BADPUT_EVENTS"]) == (0.0, {"TPU_INITIALIZATION": 1.0})
        assert (ours["TPU_INITIALIZATION"], ours["CUSTOM_BADPUT_EVENTS"]) == (1.0, {})

    def test_ahead_and_running(self, tmp_path):
        """A running job whose clock is ahead of the reader's is known up to its latest record; theirs is an error."""
        start_s = round(datetime.datetime.now(UTC).timestamp()) + 3600
        payloads = TestClocks().records(start_s)[:-1]
        log = Log(payloads)
        log.read_cloud_logging_entries = lambda *_, **__: (payloads, log.last_entry_info)
        theirs = goodput.GoodputCalculator("job", "log", log, cache_dir=str(tmp_path))
        with pytest.raises(ValueError, match="invalid"):
            theirs.get_job_goodput()
        assert our_goodput.GoodputCalculator("job", "log", log).get_job_goodput()[0] == 100.0

    def test_start_in_1970(self, tmp_path):
        """A start that is dated 1970 makes no job of decades; theirs has a goodput of next to nothing."""
        stray = {"job_name": "job", "job_start_time": 12.0}
        theirs, mine = self.pair([stray, *TestClocks().records(START_S)], tmp_path)
        assert theirs.get_job_goodput()[0] < 0.001
        assert mine.get_job_goodput()[0] == 100.0

    def test_excluded_gap(self, tmp_path):
        """An exclusion in a stretch without records is excluded; theirs excludes nothing."""
        payloads = self.job((0.0, [(step, 20.0 + 3 * step) for step in range(4)]), end_s=32.0)
        bounds = [datetime.datetime.fromtimestamp(START_S + second, UTC) for second in (5.0, 15.0)]
        theirs = goodput.GoodputCalculator("job", "log", Log(payloads), cache_dir=str(tmp_path))
        mine = our_goodput.GoodputCalculator("job", "log", Log(payloads))
        assert theirs.get_job_goodput_with_exclusions([tuple(bounds)])[3] == 0.0
        share, _, _, excluded_s = mine.get_job_goodput_with_exclusions([tuple(bounds)])
        assert (share, excluded_s) == (pytest.approx(100 * 12 / 22), 10.0)

    def test_short_steps(self, tmp_path):
        """Steps below a second have an ideal; with theirs there is none."""
        payloads = self.job((0.0, [(step, 5.0 + 0.5 * step) for step in range(6)]), end_s=8.0)
        theirs = goodput.GoodputCalculator("job", "log", Log(payloads), cache_dir=str(tmp_path))
        with pytest.raises(ValueError, match=r"."):
            theirs.get_step_deviation()
        mine = our_goodput.GoodputCalculator("job", "log", Log(payloads))
        assert mine.get_step_deviation() == pytest.approx(dict.fromkeys(range(5), 0.0), abs=1e-6)

    def test_hang(self, tmp_path):
        """A window in which nothing was recorded has a goodput of a step in progress; theirs has no answer."""
        payloads = self.job((0.0, [(step, 5.0 + 3 * step) for step in range(4)]), end_s=1000.0)[:-1]
        bounds = [datetime.datetime.fromtimestamp(START_S + second, UTC) for second in (100.0, 200.0)]
        theirs = goodput.GoodputCalculator("job", "log", Log(payloads), cache_dir=str(tmp_path))
        with pytest.raises(ValueError, match=r"."):
            theirs.get_job_goodput_interval(*bounds)
        mine = our_goodput.GoodputCalculator("job", "log", Log(payloads))
        assert mine.get_job_goodput_interval(*bounds)[3] == 100.0


class TestSameRecords:
    def calls(self, cls):
        """Return the names of the methods that record."""
        return sorted(name for name in vars(cls) if name.startswith("record_"))

    def record(self, cls, mixin=()):
        """Call every method that records, with a time of its own, and return the written records."""
        log = Written()
        recorder = cls("job", "log", True, log)
        at = datetime.datetime.fromtimestamp(START_S, UTC)
        for name in [*self.calls(cls), *mixin]:
            method = getattr(recorder, name)
            at += datetime.timedelta(seconds=1)
            given = {}
            for parameter in inspect.signature(method).parameters.values():
                is_time = parameter.name.endswith("time") or parameter.name == "timestamp"
                text = {"event_type": "scale_up", "custom_badput_event_type": "Eval"}
                given[parameter.name] = at if is_time else text.get(parameter.name, 7)
            method(**given)
        return log.payloads

    def test_recorder(self):
        """Both recorders have the same methods and write the same records."""
        assert self.calls(our_goodput.GoodputRecorder) == self.calls(goodput.GoodputRecorder)
        assert self.record(our_goodput.GoodputRecorder) == self.record(goodput.GoodputRecorder)

    def test_elastic(self):
        """So do those of elastic jobs."""
        pair = our_elastic.ElasticGoodputRecorder, elastic.ElasticGoodputRecorder
        assert self.calls(pair[0]) == self.calls(pair[1])
        assert self.record(pair[0]) == self.record(pair[1])

    def test_files(self, tmp_path):
        """The peer's calculator reads the files of trackside's recorder."""
        recorder = our_goodput.GoodputRecorder("job", "log", True, directory=tmp_path / "files")
        at = datetime.datetime.fromtimestamp(START_S, UTC)
        recorder.record_job_start_time(at)
        for step in range(5):
            recorder.record_step_start_time(step, at + datetime.timedelta(seconds=3 * step))
        recorder.record_job_end_time(at + datetime.timedelta(seconds=20))
        recorder.flush()
        (path,) = (tmp_path / "files").rglob("*.jsonl")
        log = Log([json.loads(line) for line in path.read_text().splitlines()])
        theirs = goodput.GoodputCalculator("job", "log", log, cache_dir=str(tmp_path))
        mine = our_goodput.GoodputCalculator("job", "log", directory=tmp_path / "files")
        assert mine.get_job_goodput()[0] == pytest.approx(theirs.get_job_goodput()[0])


def parameters(method):
    """Return the names of the positional parameters of *method*, and the defaults of those that have any."""
    found = [one for one in inspect.signature(method).parameters.values() if one.kind is not one.KEYWORD_ONLY]
    return [one.name for one in found if one.name != "self"]


class TestSameNames:
    @pytest.mark.parametrize(
        ("mine", "theirs"),
        [
            (our_goodput.GoodputRecorder, goodput.GoodputRecorder),
            (our_goodput.GoodputCalculator, goodput.GoodputCalculator),
            (our_elastic.ElasticGoodputRecorder, elastic.ElasticGoodputRecorder),
            (our_elastic.ElasticGoodputCalculator, elastic.ElasticGoodputCalculator),
            (UploadingMonitor, monitoring.GoodputMonitor),
        ],
    )
    def test_methods(self, mine, theirs):
        """Every public method of the peer's exists and has the same parameters in the same order."""
        public = [name for name in dir(theirs) if not name.startswith("_") and callable(getattr(theirs, name))]
        for name in ["__init__", *public]:
            assert parameters(getattr(mine, name)) == parameters(getattr(theirs, name)), name

    @pytest.mark.parametrize("name", ["BadputType", "GoodputType", "MetricType", "IntervalMetricType"])
    def test_enumerations(self, name):
        """The enumerations have the same members."""
        members = [(member.name, member.value) for member in getattr(goodput_utils, name)]
        assert [(member.name, member.value) for member in getattr(our_utils, name)] == members

    def test_options(self):
        """The cloud's options have the same names."""
        assert parameters(our_utils.GCPOptions) == parameters(goodput_utils.GCPOptions)


class TestTensorBoard:
    def test_curves(self, tmp_path):
        """Trackside's monitor draws under the peer's tags, each point once, for each uploader its own."""
        tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        pytest.importorskip("torch.utils.tensorboard")
        from trackside.compat.goodput.monitoring_elastic import ElasticGoodputMonitor

        recorder = our_elastic.ElasticGoodputRecorder("job", "log", True, directory=tmp_path)
        start = datetime.datetime.fromtimestamp(START_S, UTC)
        recorder.record_job_start_time(start)
        for step in range(5):
            recorder.record_step_start_time(step, start + datetime.timedelta(seconds=5 + 3 * step))
        recorder.record_job_end_time(start + datetime.timedelta(seconds=20))
        recorder.flush()
        monitor = ElasticGoodputMonitor(
            "job",
            "log",
            str(tmp_path / "board"),
            3600,
            monitoring_enabled=True,
            include_badput_breakdown=True,
            include_step_deviation=True,
            configured_ideal_step_time=2.0,
            directory=tmp_path,
        )
        monitor.start_goodput_uploader()
        monitor.start_step_deviation_uploader()
        monitor.start_rolling_window_goodput_uploader([10])
        for _ in range(2):
            monitor.stop_goodput_uploader()
            monitor.stop_step_deviation_uploader()
            monitor.stop_rolling_window_goodput_uploader()
        monitor.close()
        (run,) = (tmp_path / "board" / "goodput").iterdir()
        board = tensorboard.EventAccumulator(str(run)).Reload()
        found = {tag: [(one.step, one.value) for one in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
        assert found["goodput/goodput"] == [(4, 75.0)]
        assert found["badput/other"] == [(4, 25.0)]
        assert found["step_deviation"] == [(step, 1.0) for step in range(4)]
        assert found["goodput/window_10_s"] == [(4, 100.0)]
