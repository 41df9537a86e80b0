"""The effect of each event on what is known of its process."""

from __future__ import annotations

import pytest

from trackside.events import GoodputUpdated, JobConfigured, Source, SourceStarted, SpanStarted, StepStarted

pytestmark = pytest.mark.once

SAVE, RESTORE = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME", "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"
OTHER, PRODUCTIVE, LOADING = "OTHER", "PRODUCTIVE", "DATA_LOADING_SYNC"
WASTED, STARTUP = "WASTED_PROGRESS_FROM_DISRUPTION", "PROGRAM_STARTUP"


@pytest.fixture
def spent(feed):
    """Give a function that returns the time of some streams by bucket."""
    return lambda *streams: feed(*streams).result().spent_ns


class TestSpanNames:
    @pytest.mark.parametrize(
        ("name", "bucket"),
        [
            ("distributed_code_initialization", "ACCELERATOR_INITIALIZATION"),
            ("model_initialization", "TRAINING_PREP"),
            ("optimizer_initialization", "TRAINING_PREP"),
            ("data_loader_initialization", "TRAINING_PREP"),
            ("checkpoint_load", RESTORE),
            ("checkpoint_save_sync", SAVE),
            ("checkpoint_save_async", SAVE),
            ("checkpoint_save_finalization", SAVE),
            ("validation_loop", "VALIDATION"),
            ("testing_loop", "VALIDATION"),
            ("data_loading", LOADING),
        ],
    )
    def test_bucket(self, stream, spent, name, bucket):
        """Each span with a meaning for goodput has its bucket."""
        assert spent(stream().start(1).span(name, 3, 8).beat(9)) == {OTHER: 3, bucket: 5}

    @pytest.mark.parametrize("name", ["application", "training_loop", "model_forward", "optimizer_update", "anything"])
    def test_none(self, stream, spent, name):
        """Other spans show that the process was alive, and have no bucket."""
        assert spent(stream().start(1).span(name, 3, 8)) == {OTHER: 7}

    @pytest.mark.parametrize("kind", ["validation", "testing"])
    def test_iterations(self, stream, spent, kind):
        """Iterations of evaluation are evaluation, also without a loop around them."""
        assert spent(stream().start(1).step(0, 3, 8, kind=kind)) == {OTHER: 2, "VALIDATION": 5}

    def test_iteration_as_a_span(self, stream, spent):
        """A training iteration may come as a span."""
        assert spent(stream().start(1).span("training_single_iteration", 1, 8)) == {PRODUCTIVE: 7}


class TestMarks:
    def test_custom(self, stream, feed):
        """A span that is marked is custom badput of its type, in its own case, whatever its name."""
        job = stream().start(1).span("data_loading", 1, 4, badput_type="SDC check").span("x", 4, 6, badput_type="sdc")
        assert feed(job).result().badput_s["CUSTOM_BADPUT_EVENTS"] == {"SDC check": 3e-9, "sdc": 2e-9}

    @pytest.mark.parametrize("bucket", ["ELASTIC_SLICE_DOWN", "ELASTIC_SCALE_UP", "ELASTIC_REINITIALIZATION", SAVE])
    def test_bucket(self, stream, spent, bucket):
        """A mark that is the name of a bucket puts the span there."""
        assert spent(stream().start(1).span("x", 1, 4, badput_type=bucket)) == {bucket: 3}

    @pytest.mark.parametrize("name", ["PRODUCTIVE", "OTHER", WASTED])
    def test_no_mark(self, stream, spent, name):
        """Buckets that are derived from others cannot be requested: the mark only makes a custom type of that name."""
        assert spent(stream().start(1).span("x", 1, 4, badput_type=name)) == {("CUSTOM_BADPUT_EVENTS", name): 3}


class TestThreads:
    def test_loading_elsewhere(self, stream, feed):
        """Loading in another thread delays nothing."""
        result = feed(stream().start(1).span("data_loading", 1, 4, thread="loader").step(0, 1, 9)).result()
        assert (result.spent_ns, result.informational_s) == ({PRODUCTIVE: 8}, {"DATA_LOADING_ASYNC": 3e-9})

    def test_loading_in_a_worker(self, stream, feed):
        """Neither does loading in a worker process, which is no rank."""
        worker = stream(id="w", role="worker").start(2).span("data_loading", 2, 7)
        result = feed(stream().start(1).step(0, 1, 9), worker).result()
        assert (result.spent_ns, result.informational_s) == ({PRODUCTIVE: 8}, {"DATA_LOADING_ASYNC": 5e-9})
        assert len(result.ranks) == 1

    def test_loading_in_a_window(self, stream, feed):
        """A window has its part of background loading too."""
        job = stream().start(1).span("data_loading", 1, 5, thread="loader").span("data_loading", 7, 9, thread="loader")
        assert feed(job).result(start_ns=3, end_ns=8).informational_s == {"DATA_LOADING_ASYNC": 3e-9}

    def test_save_elsewhere(self, stream, spent):
        """A save in another thread blocks nothing."""
        job = stream().start(1)
        job.open("checkpoint_save_async", 2, thread="writer")
        job.span("checkpoint_save_async", 2, 8, thread="writer").step(0, 1, 9)
        assert spent(job) == {PRODUCTIVE: 8}

    def test_training_elsewhere(self, stream, spent):
        """If the training loop runs in a thread of its own, loading and saving in that one block it."""
        job = stream().start(1)
        job.open("training_loop", 1, thread="trainer")
        job.span("data_loading", 1, 3, thread="trainer").step(0, 3, 9)
        job.span("checkpoint_save_sync", 9, 12, thread="trainer").span("data_loading", 9, 12)
        assert spent(job) == {LOADING: 2, PRODUCTIVE: 6, SAVE: 3}


class TestSteps:
    def test_failed(self, stream, spent):
        """A failed step is not productive."""
        assert spent(stream().start(1).step(0, 1, 5).step(1, 5, 9, failed=True)) == {PRODUCTIVE: 4, OTHER: 4}

    def test_without_a_number(self, stream, feed):
        """A step without a number is the one after the last."""
        model = feed(stream().start(1).step(-1, 1, 5).step(-1, 5, 9).step(7, 9, 13))
        assert [step.number for step in model.step_times()] == [0, 1, 7]

    def test_micro_batches(self, stream, feed):
        """Several iterations with one number, as in gradient accumulation, are all productive."""
        model = feed(stream().start(1).step(3, 1, 5).step(3, 5, 9).step(3, 9, 13).step(4, 13, 17))
        assert (model.result().spent_ns, model.result().problems.keys()) == (
            {PRODUCTIVE: 16},
            {"an attempt without an end: it runs, or fell silent"},
        )

    def test_sub_second(self, stream, feed):
        """Steps of 1 ms are steps: they have an ideal time and percentiles."""
        job = stream().start(1)
        for step in range(100):
            job.step(step, 10**6 * step + 1, 10**6 * (step + 1) + 1)
        times = feed(job).result().step_time
        assert (times.ideal_s, times.p99_s, times.count) == (0.001, 0.001, 100)

    def test_epochs(self, stream, feed):
        """Steps that are counted anew in each epoch are not done again: no checkpoint was loaded."""
        result = feed(stream().start(1).step(0, 1, 5).step(1, 5, 9).step(0, 9, 13).step(1, 13, 17)).result()
        assert result.spent_ns == {PRODUCTIVE: 16}
        assert result.problems["steps counted anew without a checkpoint loaded"] == 1

    def test_epochs_and_a_restart(self, stream, spent):
        """After a restart, the steps of the last epoch that are trained again are lost."""
        first = stream(attempt=0).start(1).step(0, 1, 5).step(1, 5, 9).step(0, 9, 13).step(1, 13, 17)
        second = stream(attempt=1).start(17).step(1, 17, 21)
        assert spent(first, second) == {PRODUCTIVE: 16, WASTED: 4}

    def test_epochs_after_a_restart(self, stream, spent):
        """The low numbers of later epochs say nothing about attempts before them."""
        first = stream(attempt=0).start(1).step(0, 1, 5).step(1, 5, 9).step(2, 9, 13)
        second = stream(attempt=1).start(13).step(2, 13, 17).step(0, 17, 21).step(1, 21, 25)
        third = stream(attempt=2).start(25).step(1, 25, 29)
        assert spent(first, second, third) == {PRODUCTIVE: 4 + 4 + 4 + 4 + 4, WASTED: 4 + 4}

    def test_rolled_back(self, stream, feed):
        """In one process, steps after a checkpoint that it loaded again are done again: no attempt, and wasted."""
        job = stream().start(1).step(0, 1, 5).step(1, 5, 9).step(2, 9, 13)
        result = feed(job.span("checkpoint_load", 13, 15).step(1, 15, 19).step(2, 19, 23)).result()
        assert result.spent_ns == {PRODUCTIVE: 12, WASTED: 8, RESTORE: 2}
        assert (result.attempts, result.disruptions) == (1, 0)


class TestStepStarts:
    def test_repeated(self, stream, feed):
        """A step start recorded twice is one."""
        result = feed(stream().step_start(0, 1).step_start(1, 5).step_start(1, 6).end(9)).result()
        assert result.spent_ns == {PRODUCTIVE: 8}
        assert result.problems == {"a record that was there already": 1}

    def test_running(self, stream, spent):
        """A running step without an end lasts as long as the process is known to live."""
        assert spent(stream().step_start(0, 1).step_start(1, 5).beat(9)) == {PRODUCTIVE: 8}

    def test_lost(self, stream, spent):
        """If a later attempt does it again it was lost."""
        first = stream(attempt=0).step_start(0, 1).step_start(1, 5).beat(9)
        assert spent(first, stream(attempt=1).step_start(1, 9).step_start(2, 13)) == {PRODUCTIVE: 8, WASTED: 4}

    def test_done(self, stream, spent):
        """If a later attempt goes on behind it, it was done."""
        first = stream(attempt=0).step_start(0, 1).step_start(1, 5).beat(9)
        assert spent(first, stream(attempt=1).step_start(2, 9).step_start(3, 13)) == {PRODUCTIVE: 12}

    def test_unknown(self, stream, spent):
        """As long as no later attempt has trained, it is unknown."""
        first = stream(attempt=0).step_start(0, 1).step_start(1, 5).beat(9)
        assert spent(first, stream(attempt=1).start(9).beat(13)) == {PRODUCTIVE: 4, OTHER: 8}

    def test_span_of_an_iteration(self, stream, spent):
        """The start of an iteration's span is a step's start too."""
        job = stream()
        for step, at in enumerate((1, 5)):
            job.put(
                SpanStarted(at_ns=at, span_id=step + 1, parent_span_id=0, name="training_single_iteration", step=step)
            )
            job.span("training_single_iteration", at, at + 3, id=step + 1)
        assert spent(job) == {PRODUCTIVE: 6, OTHER: 1}

    def test_span_after_a_checkpoint(self, stream, spent):
        """A checkpoint that was loaded before the start of an iteration's span lets it do steps again."""
        job = stream()
        for number, (step, at) in enumerate(((0, 1), (1, 5), (2, 9), (1, 17)), start=1):
            if number == 4:
                job.span("checkpoint_load", 13, 17)
            job.put(
                SpanStarted(at_ns=at, span_id=number, parent_span_id=0, name="training_single_iteration", step=step)
            )
            span = job.span("training_single_iteration", at, at + 4, id=number).events[-1]
            span.step = step
        assert spent(job) == {PRODUCTIVE: 8, WASTED: 8, RESTORE: 4}


class TestHeartbeats:
    def test_within_a_step(self, stream, spent):
        """A heartbeat from within a step shows that the step goes on, from where it was seen first."""
        job = stream().start(1).step(0, 1, 5)
        job.beat(8, (7, "model_forward", 6)).beat(15, (8, "model_backward", 12))
        assert spent(job) == {PRODUCTIVE: 4 + 9, OTHER: 1}

    def test_late(self, stream, spent):
        """A heartbeat that comes after the end of its iteration has no effect."""
        job = stream().start(1)
        job.step(0, 1, 5)
        assert spent(job.beat(9, (1, "training_single_iteration", 1))) == {PRODUCTIVE: 4, OTHER: 4}

    def test_over(self, stream, spent):
        """A later heartbeat without the step ends it."""
        assert spent(stream().start(1).beat(5, (7, "model_forward", 2)).beat(9, (3, "training_loop", 1))) == {OTHER: 8}

    def test_loading(self, stream, spent):
        """A load in progress is loading."""
        assert spent(stream().start(1).step(0, 1, 5).beat(9, (7, "data_loading", 6))) == {
            PRODUCTIVE: 4,
            OTHER: 1,
            LOADING: 3,
        }

    def test_loading_is_over(self, stream, spent):
        """A load in progress is loading until its end is recorded."""
        job = stream().start(1).beat(5, (7, "data_loading", 3)).span("data_loading", 3, 6, id=7).beat(9)
        assert spent(job) == {OTHER: 5, LOADING: 3}

    def test_loading_whose_end_was_lost(self, stream, spent):
        """A loading that a heartbeat was within is over when its step is: no step loses time to it."""
        job = stream().start(1).step_start(0, 10).step_start(1, 20).beat(25, inside=(700, "data_loading", 22))
        job.step_start(2, 30).step_start(3, 40)
        assert spent(job) == {"OTHER": 9, "PRODUCTIVE": 30}

    def test_killed_within_a_step(self, stream, spent):
        """A step in which the process was killed is lost when a later attempt does it again."""
        first = stream(attempt=0).start(1).step(0, 1, 5).beat(9, (7, "model_forward", 5))
        second = stream(attempt=1).start(12).step(1, 12, 16)
        recovery = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
        assert spent(first, second) == {PRODUCTIVE: 8, WASTED: 4, recovery: 3}


class TestIdentity:
    def test_identity_later(self, stream, feed):
        """The first events of a process that come before its identity belong to the rank named later."""
        known = Source(id="p", run_id="run", session_tag="s", rank=3)
        job = stream(source=Source.unknown("p")).step(0, 1, 5)
        job.source = known
        job.put(SourceStarted(at_ns=1, identity={}, span_id=0, step=-1))
        model = feed(job)
        assert (model.sessions(), [rank.rank for rank in model.result().ranks]) == (["s"], [3])

    def test_derived(self, stream, feed):
        """Derived events are not read: they do not even show that the process was alive."""
        job = stream().start(1).step(0, 1, 5)
        plain = feed(job).dump()
        job.put(GoodputUpdated(at_ns=50, session="s", elapsed_s=1.0, productive_s=1.0, goodput=1.0, span_id=0, step=-1))
        assert feed(job).dump() == plain

    def test_any_event_is_a_sign_of_life(self, stream, spent):
        """Any event shows that its process was alive."""
        job = stream().start(1).step(0, 1, 5)
        configured = JobConfigured(at_ns=9, world_size=1, rank=0, node_name="n", session_tag="s", span_id=0, step=-1)
        assert spent(job.put(configured)) == {PRODUCTIVE: 4, OTHER: 4}

    def test_started_late(self, stream, spent):
        """A span that began before trackside did belongs to the process's time."""
        assert spent(stream().start(5).span("application", 1, 9)) == {OTHER: 8}


def test_step_started_needs_no_fields():
    """The step is the envelope's."""
    assert StepStarted(at_ns=1, step=7).step == 7
