"""
Every name of One Logger's exists, and the tables of the documentation map it.

The names stand here as One Logger 2.3.1 has them, so that neither the code nor the page can lose one unnoticed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import trackside.events
from one_logger_fields import EVENTS, OF_SPANS, SPANS
from pages import table_of
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

NOT_EXPORTED = SPANS[12:]


def quoted(cell):
    return re.findall(r"`(\w+)`", cell)


class TestSpans:
    def test_page(self):
        """The page has every span."""
        assert [row[0] for row in table_of(PAGE, "One Logger's span")] == SPANS

    def test_enum(self):
        """So has the enum; the application is in another one, as it is there."""
        assert {name.value for name in StandardTrainingJobSpanName} == set(SPANS) - {"application"}

    def test_not_exported(self):
        """Spans of every iteration are not exported unless chosen."""
        assert [name.value for name in DEFAULT_SPANS_EXPORT_BLACKLIST] == NOT_EXPORTED

    def test_ours(self):
        """Trackside's names on the page are those in the code."""
        ours = {value for name, value in vars(span_names).items() if name.isupper() and value in SPANS}
        named = {row[1] for row in table_of(PAGE, "One Logger's span")}
        assert named == ours - {span_names.TESTING_ITERATION_ALIAS} | {span_names.TESTING_ITERATION}

    @pytest.mark.parametrize("row", table_of(PAGE, "One Logger's span"), ids=lambda row: row[0])
    def test_ways_in(self, row):
        """For every span there is a context manager and a pair of callbacks."""
        (manager,), pair = quoted(row[2]), quoted(row[3])
        assert callable(getattr(instruments, manager))
        assert [callable(getattr(callbacks, name, None)) for name in pair] == [True, True]


class TestEvents:
    ROWS = {row[0]: row for row in table_of(PAGE, "One Logger's event")}

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
