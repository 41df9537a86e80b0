"""Checkpoints: the spans of saves, and their outcomes."""

from __future__ import annotations

import threading

import pytest

from trackside.bus import default_bus
from trackside.events import (
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    ConfigError,
    SpanEnded,
    SpanOutOfOrder,
    SpanStarted,
)
from trackside.instruments import (
    TrainingDefaults,
    application,
    checkpoint_failed,
    checkpoint_load,
    checkpoint_save,
    checkpoint_save_finalization,
    checkpoint_succeeded,
    set_training_defaults,
    training_loop,
)


def recorded(captured):
    """Return the outcomes of saves: the event's class and the step."""
    outcomes = (CheckpointSaveSucceeded, CheckpointSaveFailed)
    return [(type(event), event.global_step) for event in captured if isinstance(event, outcomes)]


class TestSync:
    def test_order(self, captured):
        """A save succeeds within its span."""
        with checkpoint_save(100):
            pass
        assert [type(event) for event in captured] == [SpanStarted, CheckpointSaveSucceeded, SpanEnded]

    def test_span(self, captured):
        """The span has One Logger's name and attributes."""
        with checkpoint_save(100, path="/ckpt/100", shards=4):
            pass
        start = captured.of(SpanStarted)[0]
        count = start.attributes.pop("save_checkpoint_attempt_count")
        assert (start.name, start.attributes) == (
            "checkpoint_save_sync",
            {"checkpoint_strategy": "sync", "current_iteration": 100, "path": "/ckpt/100", "shards": 4},
        )
        assert count >= 1

    def test_attempts_count_up(self, captured):
        """Attempts are counted, failed ones included."""
        with pytest.raises(OSError), checkpoint_save(100):
            raise OSError
        with checkpoint_save(100):
            pass
        first, second = (event.attributes["save_checkpoint_attempt_count"] for event in captured.of(SpanStarted))
        assert second == first + 1

    def test_success(self, captured, ticking, tmp_path):
        """The success has step, path, size, time and span."""
        with checkpoint_save(100, path=tmp_path) as save:
            ticking.now_ns += 500
            save.set(size_bytes=4_096)
        (event,) = captured.of(CheckpointSaveSucceeded)
        assert (event.global_step, event.strategy, event.path) == (100, "sync", str(tmp_path))
        assert (event.size_bytes, event.duration_ns, event.save_span_id) == (4_096, 500, save.id)

    def test_failure(self, captured):
        """A save that an exception leaves has failed, with the reason."""
        with pytest.raises(OSError, match="no room"), checkpoint_save(100):
            raise OSError("no room")
        (event,) = captured.of(CheckpointSaveFailed)
        assert (event.global_step, event.error) == (100, {"type": "OSError", "message": "no room"})
        assert captured.of(CheckpointSaveSucceeded) == []
        assert captured.of(SpanEnded)[0].error["type"] == "OSError"

    def test_recorded_inside(self, captured):
        """A save that records its success itself succeeds once."""
        with checkpoint_save(100) as save:
            save.succeeded(path="/ckpt/100", size_bytes=5)
        (event,) = captured.of(CheckpointSaveSucceeded)
        assert (event.path, event.size_bytes) == ("/ckpt/100", 5)

    def test_failure_recorded_inside(self, captured):
        """A save that records its failure itself has failed, though no exception left it."""
        with checkpoint_save(100) as save:
            save.failed(OSError("no room"))
        assert recorded(captured) == [(CheckpointSaveFailed, 100)]

    def test_saved_again(self, captured):
        """A step may be saved again; each save has its own outcome."""
        with pytest.raises(OSError), checkpoint_save(100):
            raise OSError
        with checkpoint_save(100):
            pass
        assert recorded(captured) == [(CheckpointSaveFailed, 100), (CheckpointSaveSucceeded, 100)]

    def test_used_again(self, captured):
        """A save that is used again has an outcome each time."""
        save = checkpoint_save(100)
        for _ in range(2):
            with save:
                pass
        assert recorded(captured) == [(CheckpointSaveSucceeded, 100)] * 2

    def test_without_spans(self):
        """A handler of successes alone gets them."""
        found = []
        with default_bus.subscribe(found.append, to=CheckpointSaveSucceeded), checkpoint_save(100):
            pass
        assert [(event.global_step, event.save_span_id) for event in found] == [(100, 0)]

    def test_off(self):
        """While no handler listens a save publishes nothing."""
        with checkpoint_save(100) as save:
            pass
        assert save.id == 0


class TestAsync:
    def test_not_yet(self, captured):
        """The end of the blocking part is no success."""
        with checkpoint_save(100, strategy="async"):
            pass
        assert [type(event) for event in captured] == [SpanStarted, SpanEnded]
        assert captured.of(SpanStarted)[0].name == "checkpoint_save_async"

    def test_later(self, captured, ticking):
        """The success may come later; it lasts from the start of the save."""
        with checkpoint_save(100, strategy="async") as save:
            ticking.now_ns += 5
        ticking.now_ns += 70
        save.succeeded(size_bytes=9)
        (event,) = captured.of(CheckpointSaveSucceeded)
        assert (event.duration_ns, event.strategy, event.save_span_id) == (75, "async", save.id)

    def test_after_the_job(self, captured):
        """It may come after the loop and the application ended."""
        with application(), training_loop(), checkpoint_save(100, strategy="async"):
            pass
        checkpoint_succeeded(100)
        assert recorded(captured) == [(CheckpointSaveSucceeded, 100)]
        assert captured.of(SpanOutOfOrder) == []

    def test_any_order(self, captured):
        """Successes may come in any order, each with its own save's facts."""
        saves = {step: checkpoint_save(step, strategy="async", path=f"/ckpt/{step}") for step in (100, 200, 300)}
        for save in saves.values():
            with save:
                pass
        for step in (300, 100, 200):
            checkpoint_succeeded(step)
        assert [
            (event.global_step, event.path, event.save_span_id) for event in captured.of(CheckpointSaveSucceeded)
        ] == [(step, f"/ckpt/{step}", saves[step].id) for step in (300, 100, 200)]

    def test_second_outcome(self, captured):
        """
        A save belongs to its step until its outcome is recorded; a second outcome is that of a save that was not seen.
        """
        with checkpoint_save(100, strategy="async") as save:
            pass
        checkpoint_succeeded(100)
        checkpoint_succeeded(100)
        assert [event.save_span_id for event in captured.of(CheckpointSaveSucceeded)] == [save.id, 0]

    def test_from_another_thread(self, captured):
        """The outcome may come from another thread."""
        with checkpoint_save(100, strategy="async"):
            thread = threading.Thread(target=checkpoint_succeeded, args=(100,))
            thread.start()
            thread.join()
        assert recorded(captured) == [(CheckpointSaveSucceeded, 100)]

    def test_failure(self, captured):
        """The outcome may be a failure."""
        with checkpoint_save(100, strategy="async"):
            pass
        checkpoint_failed(100, OSError("no room"))
        assert captured.of(CheckpointSaveFailed)[0].error == {"type": "OSError", "message": "no room"}

    def test_blocking_part_fails(self, captured):
        """An exception in the blocking part is a failure."""
        with pytest.raises(OSError), checkpoint_save(100, strategy="async"):
            raise OSError
        assert recorded(captured) == [(CheckpointSaveFailed, 100)]

    def test_nobody_saw_it_begin(self, captured):
        """The success of a save whose start was not seen is recorded with the given values."""
        checkpoint_succeeded(700, path="/ckpt/700")
        (event,) = captured.of(CheckpointSaveSucceeded)
        assert (event.global_step, event.path, event.duration_ns, event.save_span_id) == (700, "/ckpt/700", None, 0)

    def test_forgotten_at_last(self, captured):
        """Saves without any recorded outcome are forgotten, the oldest first."""
        for step in range(2_000):
            with checkpoint_save(step, strategy="async"):
                pass
        checkpoint_succeeded(0)
        checkpoint_succeeded(1_999)
        first, last = captured.of(CheckpointSaveSucceeded)
        assert (first.save_span_id, last.save_span_id > 0) == (0, True)


class TestStrategy:
    def test_configured(self, captured):
        """The configuration's strategy is used where none is given."""
        set_training_defaults(TrainingDefaults(save_checkpoint_strategy="async"))
        with checkpoint_save(100):
            pass
        assert captured.of(SpanStarted)[0].name == "checkpoint_save_async"

    def test_wrong(self, captured):
        """A strategy that does not exist is named, and the configured one used: the save goes on."""
        with checkpoint_save(100, strategy="asink"):
            pass
        assert captured.of(SpanStarted)[0].name == "checkpoint_save_sync"
        assert 'strategy: got \'asink\'; give "sync" or "async"' in captured.of(SpanOutOfOrder)[0].problem

    def test_wrong_and_strict(self, strict):
        """In a strict bus it is an error."""
        with pytest.raises(ConfigError, match="asink"):
            checkpoint_save(100, strategy="asink")


class TestOthers:
    def test_finalization(self, captured):
        """Completing a save is a span of its own, under One Logger's name."""
        with checkpoint_save_finalization(100):
            pass
        start, _ = captured.events
        assert (start.name, start.attributes) == ("checkpoint_save_finalization", {"current_iteration": 100})

    def test_load(self, captured, tmp_path):
        """A load records its step, which may be set while it runs."""
        with checkpoint_load(path=tmp_path) as load:
            load.set(current_iteration=90)
        assert captured.of(SpanStarted)[0].attributes == {"path": str(tmp_path)}
        assert captured.of(SpanEnded)[0].attributes == {"path": str(tmp_path), "current_iteration": 90}

    def test_load_of_a_step(self, captured):
        """The step may also be given before."""
        with checkpoint_load(90):
            pass
        assert captured.of(SpanStarted)[0].attributes == {"current_iteration": 90}
