"""
Errors of ml-goodput-measurement that were measured: sums of its percentages, and times in the wrong bucket.

Each test has the true numbers, computed by hand. In those on two processes or more, one second is one ns.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.once

INIT, PREP, LOADING = "ACCELERATOR_INITIALIZATION", "TRAINING_PREP", "DATA_LOADING_SYNC"
STARTUP, OTHER, CUSTOM = "PROGRAM_STARTUP", "OTHER", "CUSTOM_BADPUT_EVENTS"
WASTED, RECOVERY = "WASTED_PROGRESS_FROM_DISRUPTION", "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
SAVE, RESTORE = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME", "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"


def spent(result):
    """Return the times above zero, in seconds, the custom types beside the buckets."""
    found = {"PRODUCTIVE": result.productive_s, **result.badput_s, **result.badput_s[CUSTOM]}
    del found[CUSTOM]
    return {bucket: length for bucket, length in found.items() if length}


class TestSum:
    """ml-goodput-measurement makes 140 %, 132 %, 107 %, 104 %, 143 %, 127 % and 0 % of these."""

    def test_initialization_in_preparation(self, records):
        """Time that two spans share is counted once: initialization takes precedence."""
        records.job(0).put(tpu_init_start_time=0).put(training_prep_start_time=2)
        records.put(tpu_init_end_time=6).put(training_prep_end_time=8)
        records.end(records.steps(range(4), 8))
        assert spent(records.result()) == {INIT: 6.0, PREP: 2.0, "PRODUCTIVE": 12.0}

    def test_restore_in_preparation(self, records):
        """A restore within the preparation is a restore."""
        records.job(0).put(training_prep_start_time=0).orbax("restore", 0, 2, 5.0, "checkpoint_manager")
        records.put(training_prep_end_time=9)
        records.end(records.steps(range(2), 9))
        assert spent(records.result()) == {RESTORE: 5.0, PREP: 4.0, "PRODUCTIVE": 6.0}

    def test_starts_in_vain(self, records):
        """Initialization of an attempt without steps is initialization, and no recovery."""
        records.job(0).steps(range(3), 0)
        records.job(10).pair("tpu_init", 10, 14)
        records.job(20).pair("tpu_init", 20, 24)
        records.end(records.steps(range(2, 4), 24))
        expected = {"PRODUCTIVE": 12.0, RECOVERY: 4.0 + 6.0, INIT: 8.0}
        assert spent(records.result()) == expected

    def test_loading_around_a_restart(self, records):
        """Blocking loads before the first step of each attempt are counted once each."""
        records.job(0).pair("data_loading", 0, 2).steps(range(3), 2)
        records.job(10).pair("data_loading", 10, 12)
        records.end(records.steps(range(2, 4), 12))
        assert spent(records.result()) == {LOADING: 4.0, "PRODUCTIVE": 12.0, RECOVERY: 2.0}

    def test_wait_in_a_step(self, records):
        """Waiting for slices within a step is no goodput."""
        records.job(0).steps(range(2), 0, length=5)
        records.pair("elastic_wait", 6, 16, elastic_wait_event_type="slice_down")
        records.end(20)
        assert spent(records.result()) == {"PRODUCTIVE": 10.0, "ELASTIC_SLICE_DOWN": 10.0}

    def test_wait_over_an_outage(self, records):
        """A wait that an old process began and a new one ended goes before the outage it spans."""
        records.job(0).steps(range(3), 0)
        records.put(elastic_wait_start_time=7, elastic_wait_event_type="slice_down").job(20)
        records.put(elastic_wait_end_time=22, elastic_wait_event_type="slice_down")
        records.end(records.steps(range(2, 4), 22))
        assert spent(records.result()) == {"PRODUCTIVE": 12.0, WASTED: 1.0, "ELASTIC_SLICE_DOWN": 15.0}

    def test_one_bucket_alone(self, records):
        """A bucket that has all the time is reported with all of it."""
        records.job(0).pair("tpu_init", 0, 10)
        assert spent(records.result()) == {INIT: 10.0}

    def test_no_steps(self, records):
        """A job without a step has time too."""
        records.job(0).pair("tpu_init", 2, 5).end(10)
        assert spent(records.result()) == {INIT: 3.0, OTHER: 7.0}


class TestAttempts:
    def test_resumed_behind_the_last_step(self, stream, feed):
        """1: a restart that goes on with the next step is one: 100 of outage are recovery."""
        first, second = stream(attempt=0).start(1), stream(attempt=1).start(131)
        for step in range(10):
            first.step(step, 1 + 3 * step, 4 + 3 * step)
            second.step(10 + step, 131 + 3 * step, 134 + 3 * step)
        result = feed(first, second).result()
        assert result.spent_ns == {"PRODUCTIVE": 60, RECOVERY: 100}
        assert result.disruptions == 1

    def test_resumed_below_the_segment(self, records):
        """2: of steps 0 to 9, 8 to 12 and 3 to 12 thirteen count, 39 s; all others were lost."""
        records.job(0).steps(range(10), 0)
        records.job(40).steps(range(8, 13), 40)
        records.job(60)
        records.end(records.steps(range(3, 13), 60))
        expected = {"PRODUCTIVE": 39.0, WASTED: 6 * 3.0 + 4 * 3.0, RECOVERY: (40 - 27) + (60 - 52.0)}
        assert spent(records.result()) == expected
        assert records.result().disruptions == 2

    def test_from_zero(self, records):
        """3: after a restart from step 0 all work before it is wasted."""
        records.job(0).steps(range(5), 0)
        records.job(20)
        records.end(records.steps(range(2), 20))
        assert spent(records.result()) == {"PRODUCTIVE": 6.0, WASTED: 12.0, RECOVERY: 8.0}

    def test_restarted_after_its_end(self, records):
        """4: a job that ended and was started again goes on: the time between is no goodput."""
        records.job(0)
        records.end(records.steps(range(5), 0))
        records.job(115)
        records.end(records.steps(range(5, 10), 115))
        assert spent(records.result()) == {"PRODUCTIVE": 30.0, RECOVERY: 100.0}

    def test_name_used_again(self, records):
        """4: if it trains the same steps again, the result says that the name may be another job's."""
        records.job(0)
        records.end(records.steps(range(5), 0))
        records.job(115)
        records.end(records.steps(range(5), 115))
        assert [name for name in records.result().problems if "name may have been used again" in name]

    def test_repeated_without_a_start(self, records):
        """10: steps that are done again show a restart of which the job start is missing: 14 s of recovery."""
        records.job(0).steps(range(5), 0)
        records.steps(range(2, 5), 26)
        records.end(35)
        assert spent(records.result()) == {"PRODUCTIVE": 15.0, WASTED: 6.0, RECOVERY: 14.0}
        assert records.result().problems["an attempt without a job start"] == 1

    def test_other_ranks(self, stream, feed):
        """13: a step that another rank lost, the whole job lost: the ranks wait for each other."""
        fast, slow = stream(rank=0).start(1), stream(rank=1).start(1)
        for step in range(4):
            start = 1 + 10 * step
            fast.step(step, start, start + 10)
            slow.span("data_loading", start, start + 6).step(step, start + 6, start + 10)
        result = feed(fast.end(41), slow.end(41)).result()
        assert result.spent_ns == {"PRODUCTIVE": 16, LOADING: 24}
        assert (result.slowest.rank, result.slowest.bucket, result.slowest.cost_s) == (1, LOADING, 24e-9)
        assert [rank.productive_s for rank in result.ranks] == [40e-9, 16e-9]


class TestSteps:
    def test_every_tenth(self, records):
        """5: a job that logs every tenth step is productive all the same."""
        records.job(0)
        records.end(records.steps(range(0, 100, 10), 0, length=30))
        assert spent(records.result()) == {"PRODUCTIVE": 300.0}

    def test_loading_before_each_step(self, records):
        """6: loads after the first step lower no goodput: such records do not say whether a step waited for them."""
        records.job(0)
        for step in range(5):
            records.pair("data_loading", 5 * step, 5 * step + 2).put(step_count=step, step_start_time=5 * step + 2)
        result = records.end(25).result()
        assert spent(result) == {LOADING: 2.0, "PRODUCTIVE": 23.0}
        assert result.informational_s == {"DATA_LOADING_ASYNC": 8.0}

    def test_slow_step(self, records):
        """9: a step of 1,000 s among those of 3 s is productive; 997 s of it are beyond the ideal."""
        records.job(0).steps(range(10), 0)
        records.end(records.steps(range(10, 20), 1027))
        result = records.result()
        assert result.goodput == 1.0
        assert (result.step_time.degraded_s, result.step_time.slow_steps) == (997.0, 1)
        assert result.effective_goodput == pytest.approx(60 / 1057)

    def test_hang(self, stream, feed):
        """9: in a hang the last step grows, and the time beyond the ideal with it; there is no gap."""
        job = stream().start(1)
        for step in range(10):
            job.step(step, 1 + 3 * step, 4 + 3 * step)
        for at in range(40, 100):
            job.beat(at, (99, "training_single_iteration", 31))
        model = feed(job)
        times = model.result().step_time
        assert (times.open_step, times.open_s, times.degraded_s) == (10, 68e-9, 65e-9)
        window = model.result(start_ns=60, end_ns=90)
        assert (window.goodput, window.effective_goodput) == (1.0, 0.0)

    def test_two_steps(self, stream, feed):
        """9: two steps are enough to see that the first took longer."""
        assert feed(stream().start(1).step(0, 1, 11).step(1, 11, 14)).result().spent_ns == {STARTUP: 7, "PRODUCTIVE": 6}

    def test_clock_set_back(self, records):
        """11: a clock that was set back by 6 s costs two steps' numbers, and not the answer."""
        records.job(0).steps(range(5), 0)
        records.steps(range(5, 10), 9)
        assert spent(records.end(24).result()) == {"PRODUCTIVE": 24.0}

    def test_whole_numbers(self, records):
        """12: times that happen to be whole numbers are times."""
        records.job(0).pair("tpu_init", 0, 2)
        records.end(records.steps(range(3), 2))
        records.payloads = [
            {key: int(value) if isinstance(value, float) else value for key, value in payload.items()}
            for payload in records.payloads
        ]
        assert spent(records.result()) == {INIT: 2.0, "PRODUCTIVE": 9.0}


class TestCustom:
    def test_over_a_step_start(self, records):
        """7: an event that begins in one step and ends in the next one counts in both."""
        records.job(0).put(step_count=0, step_start_time=0).put(
            custom_badput_event_type="sdc", custom_badput_event_start_time=2
        )
        records.put(step_count=1, step_start_time=4).put(custom_badput_event_type="sdc", custom_badput_event_end_time=5)
        assert spent(records.end(8).result()) == {"PRODUCTIVE": 5.0, "sdc": 3.0}

    def test_around_the_steps(self, records):
        """7: before the first step and after the last one it counts as well."""
        records.job(0).custom("warm-up", 0, 4).steps(range(2), 4)
        records.custom("eval", 10, 14)
        assert spent(records.end(14).result()) == {"warm-up": 4.0, "PRODUCTIVE": 6.0, "eval": 4.0}

    def test_in_a_wasted_stretch(self, records):
        """7: within work that is lost it is lost with it."""
        records.job(0).put(step_count=0, step_start_time=1).put(step_count=1, step_start_time=4)
        records.custom("eval", 5, 6).put(step_count=2, step_start_time=8)
        records.job(10)
        records.end(records.steps(range(1, 3), 10))
        assert spent(records.result()) == {OTHER: 1.0, "PRODUCTIVE": 9.0, WASTED: 4.0, RECOVERY: 2.0}

    def test_nested(self, records):
        """7: of nested events each has its own time, the inner one the time that both cover."""
        records.job(0).put(step_count=0, step_start_time=0)
        records.put(custom_badput_event_type="eval", custom_badput_event_start_time=1)
        records.custom("compile", 2, 4)
        records.put(custom_badput_event_type="eval", custom_badput_event_end_time=7)
        assert spent(records.end(10).result()) == {"PRODUCTIVE": 4.0, "eval": 4.0, "compile": 2.0}

    def test_in_the_first_step(self, records):
        """7: a compilation recorded as an event is no startup: 4 s are, of the first step's 13."""
        records.job(0).put(step_count=0, step_start_time=0).custom("compile", 1, 7)
        records.end(records.steps(range(1, 4), 13))
        assert spent(records.result()) == {STARTUP: 4.0, "compile": 6.0, "PRODUCTIVE": 12.0}


class TestCheckpoints:
    def test_longer_than_the_steps(self, records):
        """8: a save may take longer than all steps, and there is a result."""
        records.job(0).steps(range(2), 0)
        records.orbax("save", 1, 4, 20.0, "checkpoint_manager_blocking").end(25)
        assert spent(records.result()) == {"PRODUCTIVE": 5.0, SAVE: 20.0}

    def test_saved_twice(self, records):
        """8: a step that is saved again after a rollback costs again."""
        records.job(0).put(step_count=0, step_start_time=0)
        records.orbax("save", 0, 3, 2.0, "checkpoint_manager_blocking").put(step_count=1, step_start_time=5)
        records.job(10).put(step_count=1, step_start_time=10)
        records.orbax("save", 0, 13, 4.0, "checkpoint_manager_blocking").put(step_count=2, step_start_time=17)
        assert spent(records.end(20).result())[SAVE] == 6.0

    def test_in_a_wasted_stretch(self, stream, feed):
        """8: a save in work that is lost is lost with it, and takes nothing from what was productive."""
        first = stream(attempt=0).start(1).step(0, 1, 4)
        first.span("checkpoint_save_sync", 5, 6).step(1, 4, 8)
        second = stream(attempt=1).start(10).step(1, 10, 13)
        assert feed(first, second).result().spent_ns == {"PRODUCTIVE": 6, WASTED: 4, RECOVERY: 2}
