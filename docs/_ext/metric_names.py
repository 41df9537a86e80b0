"""Write the page of the metric names from the catalogue that all sinks share, each time the documentation is built."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trackside.handlers.export import CATALOGUE

if TYPE_CHECKING:
    from sphinx.application import Sphinx

    from trackside.handlers.export import Metric

INTRODUCTION: Final = """\
# Metric names

Every metric that trackside derives from its own events, under its names in OpenTelemetry, in Prometheus and as a curve
in TensorBoard, W&B and MLflow. A dash says that a system does not get it. This page is generated from the code. The
values that a job declares itself (counters, stats, gauges, `metrics`) have the names that the job gives them;
[](prometheus.md) and [](opentelemetry.md) say how these are written.

| OpenTelemetry | Prometheus | curve | unit | from | what it is |
| --- | --- | --- | --- | --- | --- |
"""


def setup(app: Sphinx) -> dict[str, bool]:
    """Have the page written before Sphinx looks for pages."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir, "metric-names.md")))
    return {"parallel_read_safe": True}


def write(path: Path) -> None:
    """Write the page to *path*, unless it is unchanged."""
    text = page(CATALOGUE)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def page(metrics: Iterable[Metric]) -> str:
    """Return the page about *metrics*, in their order."""
    return INTRODUCTION + "".join(f"| {' | '.join(cells(metric))} |\n" for metric in metrics)


def cells(metric: Metric) -> list[str]:
    prometheus = metric.prometheus and metric.prometheus + ("_total" if metric.kind == "counter" else "")
    source = f"`{metric.event.wire_name}`: `{metric.field}`"
    return [*map(code, (metric.name, prometheus, metric.curve, metric.unit)), source, metric.description or "–"]


def code(text: str) -> str:
    return f"`{text}`" if text else "–"
