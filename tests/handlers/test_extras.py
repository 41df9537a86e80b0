"""Sinks into systems of somebody else's, where that system's library is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest

from trackside.events import ConfigError

LIBRARIES = {
    "mlflow": "mlflow",
    "parquet": "pyarrow",
    "tensorboard": "torch.utils.tensorboard",
    "wandb": "wandb",
}
"""By extra, and by module of the same name, what it imports."""


class TestMissing:
    @pytest.mark.parametrize("extra", LIBRARIES)
    def test_is_one_line(self, extra, monkeypatch):
        """To import such a sink is an error that names what to install."""
        monkeypatch.setitem(sys.modules, LIBRARIES[extra], None)
        monkeypatch.delitem(sys.modules, f"trackside.handlers.{extra}", raising=False)
        with pytest.raises(ConfigError) as caught:
            importlib.import_module(f"trackside.handlers.{extra}")

        assert f"install trackside[{extra}]" in str(caught.value)
        assert "\n" not in str(caught.value)
