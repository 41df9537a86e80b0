"""The callbacks: One Logger's names, arguments and times, in any order of the calls."""

from __future__ import annotations

import inspect
import threading

import pytest

from trackside.bus import default_bus
from trackside.events import (
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    ConfigError,
    IterationEnded,
    SpanEnded,
    SpanOutOfOrder,
    SpanStarted,
    ambient,
)
from trackside.instruments import SpanOrderError, TrainingDefaults, _span, callbacks, set_training_defaults, span
from trackside.instruments.callbacks import (
    on_app_end,
    on_app_start,
    on_data_loading_end,
    on_data_loading_start,
    on_load_checkpoint_start,
    on_model_init_end,
    on_model_init_start,
    on_save_checkpoint_end,
    on_save_checkpoint_failure,
    on_save_checkpoint_start,
    on_save_checkpoint_success,
    on_train_end,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
    on_validation_end,
    on_validation_single_iteration_end,
    on_validation_single_iteration_start,
    on_validation_start,
)

# Every pair without arguments of its own, and the span that it opens.
PAIRS = {
    "app": "application",
    "distributed_init": "distributed_code_initialization",
    "dataloader_init": "data_loader_initialization",
    "model_init": "model_initialization",
    "optimizer_init": "optimizer_initialization",
    "load_checkpoint": "checkpoint_load",
    "train": "training_loop",
    "validation": "validation_loop",
    "testing": "testing_loop",
    "training_single_iteration": "training_single_iteration",
    "validation_single_iteration": "validation_single_iteration",
    "testing_single_iteration": "testing_single_iteration",
    "data_loading": "data_loading",
    "model_forward": "model_forward",
    "zero_grad": "zero_grad",
    "model_backward": "model_backward",
    "optimizer_update": "optimizer_update",
    "save_checkpoint_finalization": "checkpoint_save_finalization",
}


def problems(captured):
    """Return the problems that were recorded."""
    return [(event.name, event.problem) for event in captured.of(SpanOutOfOrder)]


def names_and_times(captured):
    """Return the spans that ended: name, end and duration."""
    kinds = {"training": "training_single_iteration", "validation": "validation_single_iteration"}
    kinds["testing"] = "testing_single_iteration"
    return [
        (event.name if isinstance(event, SpanEnded) else kinds[event.kind], event.at_ns, event.duration_ns)
        for event in captured
        if isinstance(event, (SpanEnded, IterationEnded))
    ]


class TestPairs:
    @pytest.mark.parametrize(("stem", "name"), PAIRS.items())
    def test_no_times(self, captured, ticking, stem, name):
        """Without times a span lasts from call to call."""
        getattr(callbacks, f"on_{stem}_start")()
        ticking.now_ns += 70
        getattr(callbacks, f"on_{stem}_end")()
        assert names_and_times(captured) == [(name, 11_000_000_070, 70)]

    @pytest.mark.parametrize(("stem", "name"), PAIRS.items())
    def test_both_times(self, captured, stem, name):
        """With times, given in milliseconds, it has these."""
        getattr(callbacks, f"on_{stem}_start")(start_time_msec=1_700_000_000_000.25)
        getattr(callbacks, f"on_{stem}_end")(finish_time_msec=1_700_000_000_100)
        assert names_and_times(captured) == [(name, 1_700_000_000_100_000_000, 99_750_000)]

    @pytest.mark.parametrize(("stem", "name"), PAIRS.items())
    def test_start_time(self, captured, ticking, stem, name):
        """Either time may be given alone."""
        getattr(callbacks, f"on_{stem}_start")(start_time_msec=10_900)
        getattr(callbacks, f"on_{stem}_end")()
        assert names_and_times(captured) == [(name, 11_000_000_000, 100_000_000)]

    @pytest.mark.parametrize("stem", PAIRS)
    def test_end_alone(self, captured, stem):
        """An end without a start ends nothing, and is named."""
        getattr(callbacks, f"on_{stem}_end")()
        assert problems(captured) == [(PAIRS[stem], "ended without a start")]
        assert names_and_times(captured) == []

    @pytest.mark.parametrize("stem", PAIRS)
    def test_returns_the_span(self, captured, stem):
        """The start returns the span; after the end no span is open."""
        opened = getattr(callbacks, f"on_{stem}_start")()
        assert (opened.name, opened.is_open) == (PAIRS[stem], True)
        getattr(callbacks, f"on_{stem}_end")()
        assert opened.is_open is False
        assert ambient.get() == (0, -1)

    @pytest.mark.parametrize("stem", PAIRS)
    def test_off(self, stem):
        """While no handler listens no span is numbered, nothing is left open, and a second end is no error."""
        opened = getattr(callbacks, f"on_{stem}_start")()
        getattr(callbacks, f"on_{stem}_end")()
        getattr(callbacks, f"on_{stem}_end")()
        assert (opened.id, _span.opened(), ambient.get()) == (0, {}, (0, -1))

    def test_all_are_here(self):
        """No other callbacks exist, apart from those of saves."""
        found = {name for name in vars(callbacks) if name.startswith("on_")}
        saves = {f"on_save_checkpoint_{what}" for what in ("start", "success", "failure", "end")}
        assert found == saves | {f"on_{stem}_{edge}" for stem in PAIRS for edge in ("start", "end")}

    def test_names(self):
        """Each callback has the name that it is called by, which ``help`` shows."""
        assert [
            name for name in vars(callbacks) if name.startswith("on_") and getattr(callbacks, name).__name__ != name
        ] == []

    @pytest.mark.parametrize("stem", PAIRS)
    def test_arguments(self, stem):
        """The first argument is One Logger's, except that of on_train_start."""
        start, end = (getattr(callbacks, f"on_{stem}_{edge}") for edge in ("start", "end"))
        first = "train_iterations_start" if stem == "train" else "start_time_msec"
        assert next(iter(inspect.signature(start).parameters)) == first
        assert next(iter(inspect.signature(end).parameters)) == "finish_time_msec"


class TestTrain:
    def test_arguments(self):
        """The attributes are One Logger's, in its order."""
        assert list(inspect.signature(on_train_start).parameters) == [
            "train_iterations_start",
            "train_samples_start",
            "train_iterations_target_or_fn",
            "train_samples_target_or_fn",
            "start_time_msec",
        ]

    def test_attributes(self, captured):
        """The attributes of the training loop are set."""
        on_train_start(90, 2_880, lambda: 1_000, 32_000)
        on_train_end()
        assert captured.of(SpanStarted)[0].attributes == {
            "train_iterations_start": 90,
            "train_samples_start": 2_880,
            "train_iterations_target": 1_000,
            "train_samples_target": 32_000,
        }

    def test_steps(self, captured):
        """Iterations are numbered from the loop's start."""
        on_train_start(90)
        for _ in range(2):
            on_training_single_iteration_start()
            on_training_single_iteration_end()
        on_train_end()
        assert [event.step for event in captured.of(IterationEnded)] == [90, 91]

    def test_done(self, captured):
        """An iteration's step, samples and tokens may be given."""
        on_training_single_iteration_start(step=7)
        on_training_single_iteration_end(samples=32, tokens=64, flops=1.5, loss=0.5)
        (event,) = captured.of(IterationEnded)
        assert (event.step, event.samples, event.tokens, event.flops, event.loss) == (7, 32, 64, 1.5, 0.5)

    def test_failed(self, captured):
        """An iteration may be marked as failed."""
        on_training_single_iteration_start()
        on_training_single_iteration_end(failed=True)
        assert captured.of(IterationEnded)[0].failed is True

    def test_nesting(self, captured):
        """Spans have as their parent the one opened before."""
        app, loop = on_app_start(), on_train_start(0)
        iteration = on_training_single_iteration_start()
        loading = on_data_loading_start()
        assert (loop.parent_id, iteration.parent_id, loading.parent_id) == (
            app.id,
            loop.id,
            iteration.id,
        )
        on_data_loading_end()
        on_training_single_iteration_end()
        on_train_end()
        on_app_end()
        assert problems(captured) == []


class TestDisorder:
    def test_second_start(self, captured):
        """A second start ends the first, and the iteration that was not ended has failed."""
        for _ in range(2):
            on_training_single_iteration_start()
        on_training_single_iteration_end()
        assert problems(captured) == [("training_single_iteration", "was started again while open")]
        assert [event.failed for event in captured.of(IterationEnded)] == [True, False]

    def test_forgotten_end(self, captured):
        """Spans that are still open inside end with the one around them."""
        on_train_start(0)
        on_validation_start()
        on_validation_single_iteration_start()
        on_train_end(finish_time_msec=2_000_000_000_000)
        assert problems(captured) == [
            ("validation_single_iteration", "was still open when training_loop ended"),
            ("validation_loop", "was still open when training_loop ended"),
        ]
        assert [at_ns for _, at_ns, _ in names_and_times(captured)] == [2_000_000_000_000_000_000] * 3

    def test_lightning_skips_an_end(self, captured):
        """Validation batches without an end (Lightning skips it where validation_step returns None) do no harm."""
        on_validation_start()
        for _ in range(3):
            on_validation_single_iteration_start()
        on_validation_end()
        assert len(captured.of(IterationEnded)) == 3
        on_validation_start()
        on_validation_single_iteration_start()
        on_validation_single_iteration_end()
        on_validation_end()
        assert [event.failed for event in captured.of(IterationEnded)] == [True, True, True, False]

    def test_app_end_ends_everything(self, captured):
        """The end of the application ends every span, also the parent of a forgotten load."""
        on_app_start()
        on_load_checkpoint_start()
        on_train_start(0)
        on_training_single_iteration_start()
        on_app_end()
        assert [name for name, _, _ in names_and_times(captured)] == [
            "training_single_iteration",
            "training_loop",
            "checkpoint_load",
            "application",
        ]
        assert [event.failed for event in captured.of(IterationEnded)] == [True]

    def test_app_end_without_a_start(self, captured):
        """The same holds if the application was never started."""
        on_train_start(0)
        on_app_end()
        assert problems(captured) == [
            ("application", "ended without a start"),
            ("training_loop", "was still open when the application ended"),
        ]

    def test_use_after_the_end(self, captured):
        """Callbacks after the end of the application work as before it."""
        on_app_start()
        on_app_end()
        on_train_start(0)
        on_train_end()
        assert problems(captured) == []

    def test_around_a_span(self, captured):
        """A block that the script opened around the callbacks is not closed by one."""
        with span("mine") as mine:
            on_model_init_start()
            on_model_init_end()
            assert mine.is_open
        assert problems(captured) == []

    def test_another_thread_ends_it(self, captured):
        """Another thread may end it."""
        on_train_start(0)
        thread = threading.Thread(target=on_train_end)
        thread.start()
        thread.join()
        assert [name for name, _, _ in names_and_times(captured)] == ["training_loop"]
        ambient.set((0, -1))

    def test_threads_do_not_meet(self, captured):
        """Each thread may have one open span of a name."""
        meeting = threading.Barrier(4)

        def load():
            on_data_loading_start()
            meeting.wait(10)
            on_data_loading_end()

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(captured.of(SpanEnded)) == 4
        assert problems(captured) == []

    def test_another_threads_span(self, captured):
        """A span of another thread that is not inside the ended one stays open."""
        loading, over = threading.Event(), threading.Event()

        def load():
            on_data_loading_start()
            loading.set()
            over.wait(10)
            on_data_loading_end()

        thread = threading.Thread(target=load)
        on_train_start(0)
        thread.start()
        loading.wait(10)
        with span("inside"):
            on_train_end()
        over.set()
        thread.join()
        assert problems(captured) == [("training_loop", "was closed before what was opened inside it")]

    @pytest.mark.parametrize("wrong", ["soon", float("nan"), float("inf"), object()])
    def test_no_time(self, captured, ticking, wrong):
        """A value that is no time is named, and the present time is used."""
        on_model_init_start(wrong)
        on_model_init_end()
        assert names_and_times(captured) == [("model_initialization", 11_000_000_000, 0)]
        assert "give a number, or None for now" in captured.of(SpanOutOfOrder)[0].problem

    def test_old_times(self, captured):
        """A time may be far in the past: spans are often recorded after the fact."""
        on_model_init_start(start_time_msec=1_000)
        on_model_init_end(finish_time_msec=2_000)
        assert names_and_times(captured) == [("model_initialization", 2_000_000_000, 1_000_000_000)]

    def test_end_before_start(self, captured):
        """An end before the start is named, and no time passes."""
        on_model_init_start(start_time_msec=2_000)
        on_model_init_end(finish_time_msec=1_000)
        assert names_and_times(captured) == [("model_initialization", 2_000_000_000, 0)]
        assert problems(captured) == [("model_initialization", "ended before it started")]

    def test_strict(self, captured, strict):
        """In a strict bus disorder is an error."""
        with pytest.raises(SpanOrderError, match="'training_loop' ended without a start"):
            on_train_end()

    def test_strict_time(self, captured, strict):
        """So is a value that is no time."""
        with pytest.raises(ConfigError, match="soon"):
            on_model_init_start("soon")


class TestSave:
    def outcomes(self, captured):
        """Return the outcomes of saves: class, step and time."""
        recorded = (CheckpointSaveSucceeded, CheckpointSaveFailed)
        return [(type(event), event.global_step, event.at_ns) for event in captured if isinstance(event, recorded)]

    def test_sync(self, captured):
        """A synchronous save succeeds when its success is recorded, within its span."""
        on_save_checkpoint_start(100, 1_000)
        on_save_checkpoint_success(100, 3_000, path="/ckpt", size_bytes=7)
        on_save_checkpoint_end(4_000)
        assert [type(event) for event in captured] == [SpanStarted, CheckpointSaveSucceeded, SpanEnded]
        (event,) = captured.of(CheckpointSaveSucceeded)
        assert (event.at_ns, event.duration_ns, event.path, event.size_bytes) == (
            3_000_000_000,
            2_000_000_000,
            "/ckpt",
            7,
        )
        assert names_and_times(captured) == [("checkpoint_save_sync", 4_000_000_000, 3_000_000_000)]

    def test_sync_without_success(self, captured):
        """A save that ends without a recorded outcome has failed."""
        on_save_checkpoint_start(100, 1_000)
        on_save_checkpoint_end(4_000)
        assert self.outcomes(captured) == [(CheckpointSaveFailed, 100, 4_000_000_000)]

    def test_sync_left_open(self, captured):
        """One that is never ended has failed when the next one starts."""
        on_save_checkpoint_start(100, 1_000)
        on_save_checkpoint_start(200, 4_000)
        on_save_checkpoint_success(200, 5_000)
        on_save_checkpoint_end(6_000)
        assert self.outcomes(captured) == [
            (CheckpointSaveFailed, 100, 4_000_000_000),
            (CheckpointSaveSucceeded, 200, 5_000_000_000),
        ]

    def test_async(self, captured):
        """An asynchronous one may succeed after the job ended."""
        set_training_defaults(TrainingDefaults(save_checkpoint_strategy="async"))
        on_app_start(500)
        on_save_checkpoint_start(100, 1_000)
        on_save_checkpoint_end(2_000)
        on_app_end(3_000)
        on_save_checkpoint_success(100, 9_000)
        assert self.outcomes(captured) == [(CheckpointSaveSucceeded, 100, 9_000_000_000)]
        assert captured.of(CheckpointSaveSucceeded)[0].duration_ns == 8_000_000_000
        assert problems(captured) == []

    def test_failure(self, captured):
        """A failure may be recorded, with its exception."""
        on_save_checkpoint_start(100)
        on_save_checkpoint_failure(100, error=OSError("no room"))
        on_save_checkpoint_end()
        (event,) = captured.of(CheckpointSaveFailed)
        assert event.error == {"type": "OSError", "message": "no room"}

    def test_arguments(self):
        """Their first arguments are One Logger's."""
        assert list(inspect.signature(on_save_checkpoint_start).parameters)[:2] == ["global_step", "start_time_msec"]
        assert list(inspect.signature(on_save_checkpoint_success).parameters)[:2] == ["global_step", "time_msec"]
        assert list(inspect.signature(on_save_checkpoint_end).parameters) == ["finish_time_msec"]

    def test_success_alone(self, captured):
        """The success of a save whose start was not seen is recorded all the same."""
        on_save_checkpoint_success(700, 1_000)
        assert self.outcomes(captured) == [(CheckpointSaveSucceeded, 700, 1_000_000_000)]


class TestTurnedOnInBetween:
    def test_end_after(self):
        """
        A handler that subscribes between a start and its end gets no end without a start, and no problem is reported.
        """
        found = []
        on_train_start(0)
        with default_bus.subscribe(found.append):
            on_train_end()
        assert found == []
