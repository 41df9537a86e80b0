"""The tables of docs/spans.md, and the lists they were made from, against the code."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from trackside import events, instruments
from trackside.events import IterationEnded, ProfileSpanEnded, SpanEnded, SpanStarted, span_names
from trackside.instruments import TrainingDefaults, callbacks, set_training_defaults

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spans.md"

# One Logger's spans and attribute classes, field by field, as its enumerations and classes list them.
SPANS = """
    application training_loop validation_loop testing_loop distributed_code_initialization data_loader_initialization
    model_initialization optimizer_initialization checkpoint_load checkpoint_save_sync checkpoint_save_async
    checkpoint_save_finalization training_single_iteration validation_single_iteration TESTING_SINGLE_ITERATION
    data_loading model_forward zero_grad model_backward optimizer_update
""".split()
ATTRIBUTES = {
    "OneLoggerInitialization": """
        world_size one_logger_training_telemetry_version enable_for_current_rank session_tag is_baseline_run
        summary_data_schema_version node_name rank custom_metadata
    """,
    "TrainingTelemetry": """
        perf_tag global_batch_size log_every_n_train_iterations micro_batch_size seq_length flops_per_sample
        train_iterations_target train_samples_target checkpoint_strategy is_train_iterations_enabled
        is_validation_iterations_enabled is_test_iterations_enabled is_save_checkpoint_enabled
        is_log_throughput_enabled custom_metadata
    """,
    "TrainingMetricsUpdate": """
        train_iterations_start current_iteration num_iterations train_samples_start num_train_samples interval
        avg_iteration_time_sec min_iteration_time_sec max_iteration_time_sec total_iteration_time_sec train_tokens
        completed_floating_point_operations_overall total_flops train_throughput_per_gpu train_throughput_per_gpu_max
        train_throughput_per_gpu_min first_logged_train_iterations_finish_timestamp_sec
        last_logged_train_iterations_finish_timestamp_sec avg_forward_time_sec avg_backward_time_sec
        avg_dataloader_time_sec avg_tflops avg_tokens_per_second latest_loss avg_batch_size
    """,
    "ValidationMetricsUpdate": """
        current_iteration interval avg_iteration_time_sec min_iteration_time_sec max_iteration_time_sec
        total_iteration_time_sec
    """,
    "TestingMetricsUpdate": "current_iteration interval",
    "SaveCheckpointSuccess": """
        checkpoint_strategy current_iteration first_successful_save_checkpoint_timestamp_sec
        latest_successful_save_checkpoint_timestamp_sec save_checkpoint_success_count productive_train_iterations
        productive_train_samples productive_train_iterations_sec productive_validation_iterations_sec
        productive_train_tflops training_start_timestamp_sec checkpoint_size checkpoint_directory
    """,
    "SyncCheckpointMetricsUpdate": """
        save_checkpoint_sync_time_total_sec save_checkpoint_sync_time_min_sec save_checkpoint_sync_time_max_sec
    """,
}
TRAINING_LOOP = """
    train_iterations_start train_samples_start train_tokens_target completed_floating_point_operations_overall
    train_iterations_target train_samples_target
""".split()
CHECKPOINT_SAVE = "checkpoint_strategy current_iteration save_checkpoint_attempt_count".split()


def table(first):
    """Return the rows of the page's table whose first column is headed *first*."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


SPAN_TABLE = table("One Logger's span")
EVENT_TABLE = table("One Logger's event")


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
