"""
Every name of One Logger's exists, and the tables of the documentation map it.

The names stand here as One Logger 2.3.1 has them, so that neither the code nor the page can lose one unnoticed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trackside.events
from trackside import instruments
from trackside.compat.one_logger.training_telemetry.api import attributes
from trackside.compat.one_logger.training_telemetry.api.events import StandardTrainingJobEventName
from trackside.compat.one_logger.training_telemetry.api.spans import (
    DEFAULT_SPANS_EXPORT_BLACKLIST,
    StandardTrainingJobSpanName,
)
from trackside.events import own_fields, span_names
from trackside.instruments import callbacks
from trackside.instruments._phases import LoopFacts

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-one-logger.md"

SPANS = """
    application training_loop validation_loop testing_loop distributed_code_initialization data_loader_initialization
    model_initialization optimizer_initialization checkpoint_load checkpoint_save_sync checkpoint_save_async
    checkpoint_save_finalization training_single_iteration validation_single_iteration TESTING_SINGLE_ITERATION
    data_loading model_forward zero_grad model_backward optimizer_update
""".split()
NOT_EXPORTED = SPANS[12:]

EVENTS = {
    "one_logger_initialization": """
        world_size one_logger_training_telemetry_version enable_for_current_rank session_tag is_baseline_run
        summary_data_schema_version node_name rank custom_metadata
    """,
    "update_training_telemetry_config": """
        perf_tag global_batch_size log_every_n_train_iterations micro_batch_size seq_length flops_per_sample
        train_iterations_target train_samples_target checkpoint_strategy is_train_iterations_enabled
        is_validation_iterations_enabled is_test_iterations_enabled is_save_checkpoint_enabled
        is_log_throughput_enabled custom_metadata
    """,
    "training_metrics_update": """
        train_iterations_start current_iteration num_iterations train_samples_start num_train_samples interval
        avg_iteration_time_sec min_iteration_time_sec max_iteration_time_sec total_iteration_time_sec train_tokens
        completed_floating_point_operations_overall total_flops train_throughput_per_gpu train_throughput_per_gpu_max
        train_throughput_per_gpu_min first_logged_train_iterations_finish_timestamp_sec
        last_logged_train_iterations_finish_timestamp_sec avg_forward_time_sec avg_backward_time_sec
        avg_dataloader_time_sec avg_tflops avg_tokens_per_second latest_loss avg_batch_size
    """,
    "validation_metrics_update": """
        current_iteration interval avg_iteration_time_sec min_iteration_time_sec max_iteration_time_sec
        total_iteration_time_sec
    """,
    "testing_metrics_update": "current_iteration interval",
    "save_checkpoint_success": """
        checkpoint_strategy current_iteration first_successful_save_checkpoint_timestamp_sec
        latest_successful_save_checkpoint_timestamp_sec save_checkpoint_success_count productive_train_iterations
        productive_train_samples productive_train_iterations_sec productive_validation_iterations_sec
        productive_train_tflops training_start_timestamp_sec checkpoint_size checkpoint_directory
    """,
    "sync_checkpoint_metrics_update": """
        save_checkpoint_sync_time_total_sec save_checkpoint_sync_time_min_sec save_checkpoint_sync_time_max_sec
    """,
}
OF_SPANS = {
    "TrainingLoopAttributes": """
        train_iterations_start train_samples_start train_tokens_target completed_floating_point_operations_overall
        train_iterations_target train_samples_target
    """,
    "CheckpointSaveSpanAttributes": "checkpoint_strategy current_iteration save_checkpoint_attempt_count",
}


def table(first_column):
    """Return the rows of the table that begins with a column's name."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"| {first_column} |")
    body = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def quoted(cell):
    return re.findall(r"`(\w+)`", cell)


class TestSpans:
    def test_page(self):
        """The page has every span."""
        assert [row[0] for row in table("One Logger's span")] == SPANS

    def test_enum(self):
        """So has the enum; the application is in another one, as it is there."""
        assert {name.value for name in StandardTrainingJobSpanName} == set(SPANS) - {"application"}

    def test_not_exported(self):
        """Spans of every iteration are not exported unless chosen."""
        assert [name.value for name in DEFAULT_SPANS_EXPORT_BLACKLIST] == NOT_EXPORTED

    def test_ours(self):
        """Trackside's names on the page are those in the code."""
        ours = {value for name, value in vars(span_names).items() if name.isupper() and value in SPANS}
        named = {row[1] for row in table("One Logger's span")}
        assert named == ours - {span_names.TESTING_ITERATION_ALIAS} | {span_names.TESTING_ITERATION}

    @pytest.mark.parametrize("row", table("One Logger's span"), ids=lambda row: row[0])
    def test_ways_in(self, row):
        """For every span there is a context manager and a pair of callbacks."""
        (manager,), pair = quoted(row[2]), quoted(row[3])
        assert callable(getattr(instruments, manager))
        assert len([callable(getattr(callbacks, name)) for name in pair]) == 2


class TestEvents:
    ROWS = {row[0]: row for row in table("One Logger's event")}

    def test_enum(self):
        """Every event has its name."""
        assert {name.value for name in StandardTrainingJobEventName} == set(EVENTS)

    @pytest.mark.parametrize("name", EVENTS)
    def test_class(self, name):
        """
        Every attribute is one of the attribute class that the page names, including the one that One Logger never
        writes.
        """
        cls = getattr(attributes, self.ROWS[name][1])
        assert {*cls.REQUIRED, *cls.OPTIONAL} - {"app_type"} == set(EVENTS[name].split())

    @pytest.mark.parametrize("name", EVENTS)
    def test_fields(self, name):
        """Every attribute is a field of the event of ours that the page names."""
        cls = getattr(trackside.events, quoted(self.ROWS[name][2])[0])
        assert set(EVENTS[name].split()) - set(own_fields(cls)) == set()

    def test_all_exist(self):
        """Every event of ours that the page names exists."""
        for row in self.ROWS.values():
            for name in re.findall(r"`([A-Z]\w+)", row[2]):
                assert hasattr(trackside.events, name)


class TestAttributesOfSpans:
    @pytest.mark.parametrize("name", OF_SPANS)
    def test_class(self, name):
        """Every attribute is one of the class."""
        cls = getattr(attributes, name)
        assert {*cls.REQUIRED, *cls.OPTIONAL} == set(OF_SPANS[name].split())

    def test_loop(self):
        """A loop that sets every parameter writes every attribute."""
        instruments.set_training_defaults(
            instruments.TrainingDefaults(global_batch_size=2, seq_length=3, flops_per_sample=4)
        )
        try:
            sent = LoopFacts(5, None, 6, 7).attributes()
        finally:
            instruments.set_training_defaults(instruments.TrainingDefaults())
        assert set(sent) == set(OF_SPANS["TrainingLoopAttributes"].split())

    def test_save(self):
        """A save that sets every parameter writes every attribute."""
        with instruments.checkpoint_save(1) as save:
            assert set(save._given) == set(OF_SPANS["CheckpointSaveSpanAttributes"].split())
