"""The tables of docs/spans.md, and the lists they were made from, against the code."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from one_logger_fields import EVENTS, OF_SPANS, SPANS
from pages import table_of
from trackside import events, instruments
from trackside.events import IterationEnded, ProfileSpanEnded, SpanEnded, SpanStarted, span_names
from trackside.instruments import TrainingDefaults, callbacks, set_training_defaults

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spans.md"

ATTRIBUTES = dict(
    zip(
        """
        OneLoggerInitialization TrainingTelemetry TrainingMetricsUpdate ValidationMetricsUpdate TestingMetricsUpdate
        SaveCheckpointSuccess SyncCheckpointMetricsUpdate
        """.split(),
        EVENTS.values(),
        strict=True,
    )
)
TRAINING_LOOP, CHECKPOINT_SAVE = (fields.split() for fields in OF_SPANS.values())
SPAN_TABLE = table_of(PAGE, "One Logger's span")
EVENT_TABLE = table_of(PAGE, "One Logger's event")


def canonical(name):
    """Return trackside's name of a span of One Logger's."""
    return span_names.TESTING_ITERATION if name == span_names.TESTING_ITERATION_ALIAS else name


class TestSpanTable:
    def test_complete(self):
        """Every span of One Logger's is in the table, once."""
        assert [row[0] for row in SPAN_TABLE] == SPANS

    @pytest.mark.parametrize("row", SPAN_TABLE, ids=SPANS)
    def test_context_manager(self, captured, row):
        """The context manager publishes a span of the name in the table."""
        name, maker, _, published = row
        if name == "checkpoint_save_async":
            set_training_defaults(TrainingDefaults(save_checkpoint_strategy="async"))
        arguments = (7,) if maker == "checkpoint_save" else ()
        with getattr(instruments, maker)(*arguments):
            pass
        expected = {
            "long": [SpanStarted, SpanEnded],
            "iteration": [IterationEnded],
            "within an iteration": [ProfileSpanEnded],
        }[published]
        found = [event for event in captured if isinstance(event, (SpanStarted, SpanEnded, IterationEnded))]
        assert [type(event) for event in found] == expected
        if published == "iteration":
            assert span_names.OF_ITERATION[found[0].kind] == canonical(name)
        else:
            assert {event.name for event in found} == {name}

    @pytest.mark.parametrize("row", SPAN_TABLE, ids=SPANS)
    def test_callbacks(self, captured, row):
        """The callbacks publish the same spans."""
        name, _, calls, _ = row
        if name == "checkpoint_save_async":
            set_training_defaults(TrainingDefaults(save_checkpoint_strategy="async"))
        for call in calls.split(", "):
            takes_step = call.startswith("on_save_checkpoint") and call.endswith(("checkpoint_start", "success"))
            getattr(callbacks, call)(*((7,) if takes_step else ()))
        ended = [event for event in captured if isinstance(event, (SpanEnded, IterationEnded))]
        kinds = [
            span_names.OF_ITERATION[event.kind] if isinstance(event, IterationEnded) else event.name for event in ended
        ]
        assert kinds == [canonical(name)]

    def test_every_callback(self):
        """Every callback is in the table, except the one that One Logger lacks."""
        listed = {call for row in SPAN_TABLE for call in row[2].split(", ")}
        found = {name for name in vars(callbacks) if name.startswith("on_")}
        assert found - listed == {"on_save_checkpoint_failure"}
        assert listed - found == set()

    def test_alias(self):
        """One name alone differs, in its case."""
        assert [name for name in SPANS if canonical(name) != name] == ["TESTING_SINGLE_ITERATION"]
        assert canonical("TESTING_SINGLE_ITERATION") == "testing_single_iteration"

    def test_names_are_known(self):
        """The names that models use are these, and the wait for gradients, which One Logger counts as backward."""
        known = {*span_names.LONG, *span_names.PER_STEP, *span_names.WITHIN_STEP}
        assert known == {*map(canonical, SPANS), "gradient_synchronization"}


class TestEventTable:
    @pytest.mark.parametrize("row", EVENT_TABLE, ids=[row[0] for row in EVENT_TABLE])
    def test_event(self, row):
        """Our event has a field for each of One Logger's attributes, under its name."""
        _, attributes, ours = row
        fields = {field.name for field in attrs.fields(getattr(events, ours))}
        assert set(ATTRIBUTES.get(attributes, "").split()) - fields == set()

    def test_complete(self):
        """Every attribute class of an event is in the table."""
        assert {row[1] for row in EVENT_TABLE if row[1]} == set(ATTRIBUTES)


class TestSpanAttributes:
    def test_training_loop(self, captured):
        """A loop that sets every parameter writes every attribute under One Logger's names, from the start."""
        set_training_defaults(TrainingDefaults(global_batch_size=2, seq_length=3, flops_per_sample=5))
        with instruments.training_loop(7, train_iterations_target=11, train_samples_target=22):
            pass
        assert captured.of(SpanStarted)[0].attributes == dict(zip(TRAINING_LOOP, [7, 14, 66, 70, 11, 22], strict=True))

    def test_checkpoint_save(self, captured):
        """A save that sets every parameter writes every attribute under One Logger's names, from the start."""
        with instruments.checkpoint_save(7):
            pass
        assert list(captured.of(SpanStarted)[0].attributes) == CHECKPOINT_SAVE


class TestPage:
    def test_names_in_code(self):
        """Every name of trackside's that the page shows as code exists."""
        text = re.sub(r"```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
        called = {name for name in re.findall(r"`(\w+)\(", text) if name != "subscribe"}
        from trackside import bus, rules

        modules = (instruments, bus, rules, instruments.CheckpointSave)
        assert {name for name in called if not any(hasattr(module, name) for module in modules)} == set()
