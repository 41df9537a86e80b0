"""Fixtures: One Logger's names, and a process that has not configured them."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from trackside.bus import default_bus
from trackside.compat.one_logger.api.config import OneLoggerConfig
from trackside.compat.one_logger.exporter.exporter import BaseExporter
from trackside.compat.one_logger.exporter.file_exporter import FileExporter
from trackside.compat.one_logger.training_telemetry.api.config import TrainingTelemetryConfig
from trackside.compat.one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider
from trackside.events import NOWHERE, ambient
from trackside.instruments._iteration import next_step
from trackside.instruments._moments import end_all
from trackside.instruments._span import forget_opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside.compat.one_logger.core.attributes import Attributes
    from trackside.compat.one_logger.core.event import ErrorEvent, TelemetryDataError
    from trackside.compat.one_logger.core.event import Event as OneLoggerEvent
    from trackside.compat.one_logger.core.span import Span


class Recording(BaseExporter):
    """An exporter that keeps its calls: the name of the call and of the span, and for each the attributes."""

    def __init__(self, fails: Callable[[str], bool] = lambda call: False) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.sent: list[dict[str, Any]] = []
        self._fails = fails

    def keep(self, call: str, name: str, attributes: Attributes) -> None:
        """Keep one call, or fail."""
        self._check_state()
        if self._fails(call):
            raise ConnectionError(f"no connection for {call}")
        self.calls.append((call, name))
        self.sent.append(attributes.to_json())

    def export_start(self, span: Span) -> None:
        """Keep it."""
        self.keep("start", span.name_str, span.attributes)

    def export_stop(self, span: Span) -> None:
        """Keep it."""
        self.keep("stop", span.name_str, span.attributes)

    def export_event(self, event: OneLoggerEvent, span: Span) -> None:
        """Keep it, with the span's name."""
        self.keep(f"event on {span.name_str}", event.name_str, event.attributes)

    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Keep it, with the span's name."""
        self.keep(f"error on {span.name_str}", event.name_str, event.attributes)

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Keep it."""
        self.keep("data error", error.name_str, error.attributes)

    def close(self) -> None:
        """Keep that it was closed."""
        self.calls.append(("close", ""))
        super().close()

    def of(self, call: str, name: str) -> list[dict[str, Any]]:
        """Return the calls of these names."""
        return [sent for made, sent in zip(self.calls, self.sent, strict=False) if made == (call, name)]


@pytest.fixture
def one_logger(tmp_path: Path) -> Iterator[OneLogger]:
    """Give One Logger over trackside, not configured yet; afterwards it is as before."""
    next_step.set(itertools.count().__next__)  # other tests of the process have counted too
    yield OneLogger(tmp_path / "telemetry" / "spans.jsonl")
    TrainingTelemetryProvider.forget()
    end_all("the test was over", None)
    forget_opened()
    ambient.set(NOWHERE)


class OneLogger:
    """The parts of One Logger that a test needs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def config(self, **given: Any) -> OneLoggerConfig:
        """Return a configuration of the job."""
        needed: dict[str, Any] = {"application_name": "test", "world_size_or_fn": 2, "session_tag_or_fn": "session"}
        return OneLoggerConfig(**needed | given)

    def training(self, **given: Any) -> TrainingTelemetryConfig:
        """Return a configuration of the training."""
        needed: dict[str, Any] = {
            "perf_tag_or_fn": "perf",
            "global_batch_size_or_fn": 4,
            "log_every_n_train_iterations": 2,
        }
        return TrainingTelemetryConfig(**needed | given)

    def start(
        self,
        *exporters: BaseExporter,
        customization: Any = None,
        training: TrainingTelemetryConfig | None = None,
        **given: Any,
    ) -> TrainingTelemetryProvider:
        """Turn telemetry on, into a file unless there are exporters."""
        provider = TrainingTelemetryProvider.instance()
        provider.with_base_config(self.config(telemetry_config=training or self.training(), **given))
        for exporter in exporters or (FileExporter(self.path),):
            provider.with_exporter(exporter)
        if customization is not None:
            provider.with_export_customization(*customization)
        provider.configure_provider()
        return provider

    def records(self) -> list[dict[str, Any]]:
        """Return the present content of the file."""
        assert default_bus.flush(10)
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def names(self, kind: str) -> list[str]:
        """Return the names of the records of a kind, in their order."""
        key = "name" if kind in {"start", "stop", "complete"} else "event"
        found = [record[key] for record in self.records() if record["type"] == kind]
        return found if key == "name" else [event["name"] for event in found]


@pytest.fixture
def recording() -> Recording:
    """Give an exporter that keeps its calls."""
    return Recording()


@pytest.fixture
def failing() -> type[Recording]:
    """Give a function that makes an exporter that fails at some calls."""
    return Recording
