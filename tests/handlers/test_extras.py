"""Sinks whose library is not installed: one clear line, where they are imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from trackside.events import MissingExtraError

LIBRARIES = {
    "google_cloud_monitoring": "google",
    "mlflow": "mlflow",
    "nats": "nats",
    "opentelemetry": "requests",
    "parquet": "pyarrow",
    "prometheus_client": "prometheus_client",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""By module, a library that it imports."""


@pytest.mark.parametrize("module", LIBRARIES)
def test_names_the_extra(module, monkeypatch):
    """Importing such a sink raises one line with the command that installs its extra."""
    monkeypatch.setitem(sys.modules, LIBRARIES[module], None)
    monkeypatch.delitem(sys.modules, f"trackside.handlers.{module}", raising=False)
    with pytest.raises(MissingExtraError) as caught:
        importlib.import_module(f"trackside.handlers.{module}")

    assert f"pip install 'trackside[{module.replace('_', '-')}]'" in str(caught.value)
    assert "\n" not in str(caught.value)
