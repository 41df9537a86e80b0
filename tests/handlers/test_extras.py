"""Sinks whose library is not installed give one clear line when they are imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from trackside.events import MissingExtraError

LIBRARIES = {
    "google_cloud_logging": "google",
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
PACKAGES = {"google_cloud_logging": "trackside.compat.goodput"}
"""By module, its package if that is not the one of handlers."""


@pytest.mark.parametrize("module", LIBRARIES)
def test_names_the_extra(module, monkeypatch):
    """Importing such a sink raises one line with the command that installs its extra."""
    monkeypatch.setitem(sys.modules, LIBRARIES[module], None)
    name = f"{PACKAGES.get(module, 'trackside.handlers')}.{module}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(MissingExtraError) as caught:
        importlib.import_module(name)

    assert f"pip install 'trackside[{module.replace('_', '-')}]'" in str(caught.value)
    assert "\n" not in str(caught.value)
