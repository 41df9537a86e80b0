"""The scenarios of ml-goodput-measurement's own tests, in its records, give its numbers."""

from __future__ import annotations

import random
import statistics

import pytest

pytestmark = pytest.mark.once

INIT, PREP, LOADING = "ACCELERATOR_INITIALIZATION", "TRAINING_PREP", "DATA_LOADING_SYNC"
STARTUP, OTHER = "PROGRAM_STARTUP", "OTHER"
WASTED, RECOVERY = "WASTED_PROGRESS_FROM_DISRUPTION", "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"


def share(result, bucket=None):
    """Return productive or bucket seconds, and all."""
    return (result.productive_s if bucket is None else result.badput_s[bucket]), result.elapsed_s


@pytest.fixture
def disrupted(records):
    """Give a job that is restarted from step 2; each first step takes 5 s more."""
    records.job(0).pair("tpu_init", 0, 1).pair("training_prep", 1, 3).pair("data_loading", 3, 5)
    records.steps(range(5), 5, extra=5)
    records.job(30)
    records.steps(range(2, 5), 35, extra=5)
    return records.end(49)


class TestGoodput:
    def test_plain(self, records):
        """Five steps of 3 s, 5 s after the start, are 15 s of 20; the last one is step 4."""
        records.job(0)
        records.end(records.steps(range(5), 5))
        assert share(records.result()) == (15.0, 20.0)
        assert records.result().last_step == 4

    def test_first_step_extra(self, records):
        """5 s more in the first step are no goodput: 15 s of 25."""
        records.job(0)
        records.end(records.steps(range(5), 5, extra=5))
        assert share(records.result()) == (15.0, 25.0)

    def test_restart_from_zero(self, records):
        """A query 2 s into the third step after a restart from zero: 6 s of 38."""
        records.job(0)
        records.steps(range(5), 5)
        records.job(25).steps(range(3), 30)
        assert share(records.result(end=38)) == (6.0, 38.0)

    def test_restart_from_two(self, records):
        """After a restart from step 2: 12 s of 41."""
        records.job(0)
        records.steps(range(5), 5)
        records.job(25).steps(range(2, 5), 30)
        assert share(records.result(end=41)) == (12.0, 41.0)

    def test_restart_with_first_step_extra(self, records):
        """The same with slow first steps: 12 s of 51."""
        records.job(0)
        records.steps(range(5), 5, extra=5)
        records.job(30).steps(range(2, 5), 35, extra=5)
        assert share(records.result(end=51)) == (12.0, 51.0)

    def test_one_anomalous_step(self, records):
        """A step that took 30 s longer is degraded, and the effective goodput is 15 s of 50."""
        records.job(0).steps(range(2), 5)
        records.put(step_count=2, step_start_time=11).steps(range(3, 5), 44)
        result = records.end(50).result()
        assert result.step_time.degraded_s == 30.0
        assert result.effective_goodput == pytest.approx(15 / 50)

    def test_two_anomalous_steps(self, records):
        """With two such steps of ten it is 30 s of 95."""
        records.job(0).steps(range(2), 5)
        records.put(step_count=2, step_start_time=11).steps(range(3, 7), 44)
        records.put(step_count=7, step_start_time=56).steps(range(8, 10), 89)
        assert records.end(95).result().effective_goodput == pytest.approx(30 / 95)


class TestBadput:
    def test_initialization(self, records):
        """Initialization is 1 s of 21."""
        records.job(0).pair("tpu_init", 0, 1)
        records.end(records.steps(range(5), 6))
        assert share(records.result(), INIT) == (1.0, 21.0)

    def test_preparation(self, records):
        """Preparation is 2 s of 18."""
        records.job(0).pair("tpu_init", 0, 1).pair("training_prep", 1, 3)
        records.end(records.steps(range(5), 3))
        assert share(records.result(), PREP) == (2.0, 18.0)

    def test_loading(self, records):
        """Loading before the first step is 2 s of 20."""
        records.job(0).pair("tpu_init", 0, 1).pair("training_prep", 1, 3).pair("data_loading", 3, 5)
        records.end(records.steps(range(5), 5))
        assert share(records.result(), LOADING) == (2.0, 20.0)

    def test_loading_in_the_background(self, stream, feed):
        """10 s of loading in another thread beside 30 s are reported, and nothing is subtracted for them."""
        job = stream().start(1).span("data_loading", 4, 6)
        for step in range(5):
            job.span("data_loading", 9 + 5 * step, 11 + 5 * step, thread="loader").step(
                step, 6 + 5 * step, 11 + 5 * step
            )
        result = feed(job.end(31)).result()
        assert result.informational_s == {"DATA_LOADING_ASYNC": 10e-9}
        assert share(result, LOADING) == (2e-9, 30e-9)

    def test_startup(self, records):
        """The first step's excess is 5 s of 25."""
        records.job(0).pair("tpu_init", 0, 1).pair("training_prep", 1, 3).pair("data_loading", 3, 5)
        records.end(records.steps(range(5), 5, extra=5))
        assert share(records.result(), STARTUP) == (5.0, 25.0)

    @pytest.mark.parametrize(("bucket", "length"), [(STARTUP, 10.0), (WASTED, 6.0), (RECOVERY, 8.0), (None, 15.0)])
    def test_disruption(self, disrupted, bucket, length):
        """After a restart from step 2: startup 10 s, wasted 6, recovery 8, productive 15 of 49."""
        assert share(disrupted.result(), bucket) == (length, 49.0)

    def test_unknown(self, records):
        """Unexplained time is OTHER: 5 s of 26."""
        records.job(0).pair("tpu_init", 0, 1).steps(range(5), 6)
        assert share(records.end(26).result(), OTHER) == (5.0, 26.0)

    def test_checkpoints(self, disrupted):
        """Orbax's records make a save 6 s and a restore 2 s of 49; 6 s are wasted as before."""
        disrupted.orbax("save", 1, 5, 6.0, "checkpoint_manager_blocking")
        disrupted.orbax("restore", 1, 31, 2.0, "checkpoint_manager")
        result = disrupted.result()
        assert share(result, "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME") == (6.0, 49.0)
        assert share(result, "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME") == (2.0, 49.0)
        assert share(result, WASTED) == (6.0, 49.0)

    def test_custom(self, records):
        """A custom event between two of ten steps is 5 s of 41, spelled as it was recorded; 30 are productive."""
        records.job(0).pair("tpu_init", 0, 1)
        at = records.steps(range(5), 6)
        records.custom("eval_step", at, at + 5)
        records.end(records.steps(range(5, 10), at + 5))
        result = records.result()
        assert result.badput_s["CUSTOM_BADPUT_EVENTS"] == {"eval_step": 5.0}
        assert share(result) == (30.0, 41.0)

    def test_late_disruption(self, records):
        """Waste and recovery count when steps are done again: before, 12 s are productive; then 15, 11 are not."""
        records.job(0).steps(range(5), 0)
        records.job(20)
        assert records.result().productive_s == 12.0
        records.end(records.steps(range(3, 5), 20))
        result = records.result()
        assert (result.productive_s, result.elapsed_s) == (15.0, 26.0)
        assert result.badput_s[RECOVERY] == 8.0


class TestInterval:
    def test_whole(self, disrupted):
        """The interval of the whole run: 15 s of 49, last step 4, one disruption, 6 s wasted."""
        result = disrupted.result(start=0, end=49)
        assert share(result) == (15.0, 49.0)
        assert (result.last_step, result.disruptions, result.badput_s[WASTED]) == (4, 1, 6.0)

    def test_first_life(self, disrupted):
        """As long as no restart is known: 12 s of 22, last step 3, no disruption, nothing wasted."""
        del disrupted.payloads[12:]
        result = disrupted.result()
        assert share(result) == (12.0, 22.0)
        assert (result.last_step, result.disruptions, result.badput_s[WASTED]) == (3, 0, 0.0)

    def test_first_life_in_hindsight(self, disrupted):
        """With all later events, 6 s of those 12 were wasted."""
        result = disrupted.result(end=22)
        assert share(result) == (6.0, 22.0)
        assert result.badput_s[WASTED] == 6.0


class TestStepTimes:
    def test_each(self, records):
        """Of 100 random steps each has its own length; the ideal is the mean of those that are not slow."""
        rng = random.Random(7)
        lengths = [rng.randint(1, 600) for _ in range(99)]
        at = 0
        records.job(0)
        for step, length in enumerate([*lengths, 10]):
            records.put(step_count=step, step_start_time=at)
            at += length
        model = records.end(at).model()
        median = statistics.median(lengths)
        limit = median + 3 * statistics.median(abs(length - median) for length in lengths)
        ideal = statistics.mean(length for length in lengths if length <= limit)

        assert [step.net for step in model.step_times()][:-1] == [length * 10**9 for length in lengths]
        assert model.result().step_time.ideal_s == pytest.approx(ideal, rel=0.01)


class TestExclusions:
    def test_productive(self, records):
        """Of two steps of 10 s after 10 s without any, 5 s are excluded: 60 % goodput, 40 % OTHER."""
        records.job(0).steps(range(2), 10, length=10)
        result = records.end(30).result(exclude=[(10, 15)])
        assert result.excluded_s == 5.0
        assert result.goodput == pytest.approx(0.60)
        assert result.badput_s[OTHER] / result.elapsed_s == pytest.approx(0.40)

    def test_whole_bucket(self, records):
        """With the whole initialization excluded none is left, and OTHER is two thirds."""
        records.job(0).pair("tpu_init", 0, 10).put(step_count=0, step_start_time=20).end(25)
        result = records.result(exclude=[(0, 10)])
        assert (result.excluded_s, result.badput_s[INIT]) == (10.0, 0.0)
        assert result.badput_s[OTHER] / result.elapsed_s == pytest.approx(2 / 3)

    def test_custom(self, records):
        """One of two custom events is excluded."""
        records.job(0).put(step_count=0, step_start_time=0).custom("test_sync", 2, 12)
        records.put(step_count=1, step_start_time=15).custom("test_sync", 17, 27)
        result = records.end(30).result(exclude=[(2, 12)])
        assert (result.excluded_s, result.badput_s["CUSTOM_BADPUT_EVENTS"]) == (10.0, {"test_sync": 10.0})

    def test_outage(self, records):
        """An outage is recovery, and with it excluded there is none."""
        records.job(0).steps(range(2), 0, length=10)
        records.job(30).steps(range(1, 3), 30, length=10)
        records.end(50)
        assert records.result().badput_s[RECOVERY] == 20.0
        result = records.result(exclude=[(10, 30)])
        assert (result.badput_s[RECOVERY], result.excluded_s) == (0.0, 20.0)

    def test_half(self, records):
        """With half of the preparation excluded it is 25 % of the rest."""
        records.job(0).pair("training_prep", 0, 10)
        records.end(records.steps(range(5), 10))
        result = records.result(exclude=[(0, 5)])
        assert result.excluded_s == 5.0
        assert result.badput_s[PREP] / result.elapsed_s == pytest.approx(0.25)

    @pytest.mark.parametrize(
        ("exclude", "length"),
        [
            ([(0, 2), (1, 4)], 4.0),
            ([(0, 9), (3, 4)], 9.0),
            ([(0, 2), (2, 4)], 4.0),
            ([(0, 1), (5, 6)], 2.0),
            ([(5, 6), (0, 1)], 2.0),
            ([(6, 5)], 0.0),
            ([(5, 5)], 0.0),
            ([], 0.0),
            ([(-9, 3)], 3.0),
            ([(17, 99)], 3.0),
            ([(30, 40)], 0.0),
            ([(0.25, 0.75)], 0.5),
        ],
        ids="overlap nested touching disjoint unordered backwards empty none before after beyond subsecond".split(),
    )
    def test_normalized(self, records, exclude, length):
        """For any overlap of exclusions, each second is excluded once."""
        records.job(0)
        records.end(records.steps(range(5), 5))
        result = records.result(exclude=exclude)
        assert (result.excluded_s, result.elapsed_s) == (length, 20.0 - length)


class TestElastic:
    def test_waits(self, records):
        """10 s of waiting for slices to come back, 15 s of scaling up, 20 s of starting again, which has the rest."""
        records.job(0).pair("elastic_wait", 10, 20, elastic_wait_event_type="slice_down")
        records.pair("elastic_wait", 30, 45, elastic_wait_event_type="scale_up")
        records.put(elastic_reinit_start_time=55).pair("tpu_init", 57, 62).pair("training_prep", 65, 70)
        records.put(elastic_reinit_end_time=75).steps(range(2), 75, length=10)
        result = records.end(95).result()
        found = [result.badput_s[bucket] for bucket in list(result.badput_s)[:3]]
        assert found == [10.0, 15.0, 20.0]
        assert (result.badput_s[INIT], result.badput_s[PREP], result.attempts) == (0.0, 0.0, 1)

    def test_slice_efficiency(self, records):
        """Two of four slices train for nine hours; two are there for eight hours, all four for one."""
        hour = 3600
        counts = {"active_slices": 2, "total_slices": 4}
        records.job(0).put(**counts, available_slices=2, elastic_slice_counts_timestamp=0)
        records.put(**counts, available_slices=4, elastic_slice_counts_timestamp=8 * hour)
        efficiency = records.end(9 * hour).result().slice_efficiency
        assert (efficiency.stepping, efficiency.available) == (pytest.approx(0.5), pytest.approx(5 / 9))
