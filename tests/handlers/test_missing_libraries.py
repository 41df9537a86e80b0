"""Sinks whose library is not installed: one clear line, where they are imported."""

from __future__ import annotations

import importlib
import sys

import pytest

from trackside.events import ConfigError


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("google_cloud_monitoring", "google", "google-cloud-monitoring"),
        ("nats", "nats", "nats"),
        ("opentelemetry", "requests", "opentelemetry"),
        ("prometheus_client", "prometheus_client", "prometheus-client"),
    ],
)
def test_names_the_extra(monkeypatch, module, library, extra):
    """The line names the extra to install."""
    monkeypatch.setitem(sys.modules, library, None)  # as if it were not there
    monkeypatch.delitem(sys.modules, f"trackside.handlers.{module}", raising=False)
    with pytest.raises(ConfigError, match=rf"install trackside\[{extra}\]"):
        importlib.import_module(f"trackside.handlers.{module}")
