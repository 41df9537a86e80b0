"""Named values, and hyper-parameters."""

from __future__ import annotations

import pytest

import trackside
from trackside.bus import default_bus
from trackside.events import ConfigLogged, MetricsLogged, SpanOutOfOrder
from trackside.instruments import config, metrics, training_iteration


class TestMetrics:
    def test_event(self, captured):
        """All values of a call are one event, at the step around it."""
        with training_iteration(7):
            metrics(loss=0.5, lr=3e-4)
        (event,) = captured.of(MetricsLogged)
        assert (event.values, event.step) == ({"loss": 0.5, "lr": 3e-4}, 7)

    def test_mapping(self, captured):
        """Names that are no Python identifiers come in a mapping, at a step of their own."""
        metrics({"eval/accuracy": 0.93}, step=100, epoch=2)
        (event,) = captured.of(MetricsLogged)
        assert (event.values, event.step) == ({"eval/accuracy": 0.93, "epoch": 2}, 100)

    def test_stats(self, captured):
        """Each number is recorded by the stat of its name; other values are not."""
        metrics({"metrics.loss": 0.5, "metrics.note": "x", "metrics.ok": True})
        metrics({"metrics.loss": 1.5})
        (stat,) = default_bus.counters("metrics.*")
        assert (stat.name, stat.count, stat.sum) == ("metrics.loss", 2, 2.0)

    @pytest.mark.torch
    def test_tensor(self, captured):
        """A tensor of one element is a number."""
        torch = pytest.importorskip("torch")
        metrics(metrics_tensor=torch.tensor([2.5], requires_grad=True))
        assert captured.of(MetricsLogged)[0].values == {"metrics_tensor": 2.5}

    def test_name_of_a_counter(self, captured):
        """A value with the name of a counter is in the event and in a stat beside the counter; nothing is raised."""
        trackside.counter("metrics_counted").add(1)
        metrics(metrics_counted=5)
        assert captured.of(MetricsLogged)[0].values == {"metrics_counted": 5}
        assert (trackside.counter("metrics_counted").sum, trackside.stat("metrics_counted.stat").sum) == (1, 5)

    @pytest.mark.parametrize("wrong", [3, ["loss"], "loss"])
    def test_no_mapping(self, captured, wrong):
        """A value that is no mapping is reported, and not raised in the loop."""
        metrics(wrong)
        config(wrong)
        assert captured.of(MetricsLogged) == captured.of(ConfigLogged) == []
        assert len(captured.of(SpanOutOfOrder)) == 2


class TestConfig:
    def test_event(self, captured):
        """Nested mappings are written flat; values that are not plain become text."""
        config({"lr": 3e-4, "model": {"layers": 12, "kind": int}, "resume": None})
        (event,) = captured.of(ConfigLogged)
        assert event.values == {"lr": 3e-4, "model.layers": 12, "model.kind": "<class 'int'>", "resume": None}


class TestHints:
    def test_log_of_a_dict(self, caplog):
        """The first dict that is logged is answered at once, with the right call, and the others not again."""
        bus = trackside.Bus()
        for _ in range(2):
            bus.log({"loss": 0.1})
        bus.close(1)
        (record,) = caplog.records
        assert record.message == "log() was given a dict, which is no event; trackside.metrics(…) records named values"

    def test_misspelt_field(self, captured, caplog):
        """An attribute that is spelt nearly like a field is recorded, and the field is suggested once."""
        for step in range(3):
            with training_iteration(step) as iteration:
                iteration.set(los=0.1, note="x")
        assert [record.message for record in caplog.records] == [
            "iteration.set(los=…) is recorded as an attribute; did you mean loss=?"
        ]
