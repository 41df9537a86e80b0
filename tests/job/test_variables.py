"""Tests of what is said of variables of the environment that do not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import trackside
from trackside.job._variables import misspelt_variables


class TestMisspeltVariables:
    """Tests of the variables of the environment that nothing reads."""

    def test_said(self, tmp_path: Any, bus: trackside.Bus, monkeypatch: Any, capsys: Any) -> None:
        """A job names the variable that is spelt nearly like the given one."""
        monkeypatch.setenv("TRACKSIDE_COLECTOR", "tcp://127.0.0.1:1")
        with trackside.start(tmp_path, bus=bus, report=False):
            pass
        assert capsys.readouterr().err == (
            "trackside: the environment has TRACKSIDE_COLECTOR, which is not read; did you mean TRACKSIDE_COLLECTOR?\n"
        )

    def test_others(self) -> None:
        """A variable that is read, is another's, or is named by Kubernetes after a service is no misspelling."""
        names = ["TRACKSIDE_KEYS", "TRACKSIDE_COLLECTOR_PORT", "TRACKSIDE_PORT", "TRACKSIDE_SERVICE_HOST", "COLECTOR"]
        assert list(misspelt_variables(names)) == []

    def test_all_are_known(self) -> None:
        """Each variable on the page on configuration is known, and suggested for one that lacks its last letter."""
        page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
        names = re.findall(r"^\| `(TRACKSIDE_\w+)`", page, re.MULTILINE)
        assert sorted(misspelt_variables(name[:-1] for name in names)) == sorted((name[:-1], name) for name in names)
