"""Tests of what is said of settings that do not exist."""

from __future__ import annotations

import inspect
from typing import Any

import attrs
import pytest

import trackside
from trackside.job import LogConfig, RankHandler, StragglerWatch


def refusal(call: Any, *args: Any, **settings: Any) -> str:
    """Return what the error says that *call* raises."""
    with pytest.raises(trackside.ConfigError) as caught:
        call(*args, **settings)
    return str(caught.value)


class TestSuggestsSettings:
    """Tests of the suggestions for settings that do not exist."""

    def test_nearest(self) -> None:
        """The error names the setting that is spelt nearly like the given one."""
        assert refusal(trackside.start, "runs/", colect_interval_s=1.0) == (
            "colect_interval_s: got 1.0; start() has no such setting; did you mean collect_interval_s=…?"
        )

    def test_setting_of_a_configuration(self) -> None:
        """A setting of a configuration that is an argument is suggested with the way to give it."""
        assert refusal(trackside.start, "runs/", publsh=True) == (
            "publsh: got True; start() has no such setting; did you mean remote=Remote(publish=…)?"
        )

    def test_none_is_near(self) -> None:
        """The settings are listed where none is spelt nearly like the given one."""
        assert refusal(trackside.Remote, x=1) == (
            "x: got 1; Remote has no such setting; it has publish, collector, keys, insecure, ring_bytes"
        )

    def test_starts_nothing(self, tmp_path: Any) -> None:
        """A refused call makes no directory."""
        refusal(trackside.start, tmp_path / "runs", publsh=True)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "cls", [trackside.JobConfig, trackside.TrainingConfig, StragglerWatch, LogConfig, RankHandler]
    )
    def test_classes(self, cls: type) -> None:
        """Each class of settings refuses one that it does not have."""
        assert f"{cls.__name__} has no such setting" in refusal(cls, zzz=1)

    def test_instrument(self) -> None:
        """`instrument` suggests its own settings."""
        assert "did you mean gpu=…?" in refusal(trackside.instrument, None, None, gpus=True)

    @pytest.mark.parametrize("kind", ["counter", "stat", "gauge"])
    def test_instruments(self, kind: str) -> None:
        """`counter`, `stat` and `gauge` suggest their own settings."""
        assert refusal(getattr(trackside, kind), "tokens", units="tokens") == (
            f"units: got 'tokens'; {kind}() has no such setting; did you mean unit=…?"
        )
        assert f"{kind}() has no such setting; it has name, " in refusal(getattr(trackside, kind), "tokens", unknown=1)

    def test_signature(self) -> None:
        """The signature stays, for help and documentation."""
        assert list(inspect.signature(trackside.start).parameters)[:3] == ["directory", "job", "handlers"]
        assert "x" not in inspect.signature(trackside.Remote).parameters

    def test_evolve(self) -> None:
        """A changed copy of a configuration can be made."""
        assert attrs.evolve(trackside.Remote(), publish=True) == trackside.Remote(publish=True)

    @pytest.mark.parametrize(
        ("call", "given", "meant"),
        [
            (trackside.subscribe, "keeps", "keep"),
            (trackside.attach, "model", "models"),
            (trackside.JsonlSink, "rotate_byte", "rotate_bytes"),
            (trackside.EventLog, "rotate_byte", "rotate_bytes"),
            (trackside.event, "priorty", "priority"),
        ],
    )
    def test_others(self, call: Any, given: str, meant: str) -> None:
        """Calls that subscribe, attach, write, record and declare suggest their own settings."""
        assert f"did you mean {meant}=…?" in refusal(call, **{given: 1})

    def test_method(self, bus: trackside.Bus) -> None:
        """The settings that are listed for a method are those that can be given."""
        assert "it has handler, to, keep, min_priority, runs_on" in refusal(bus.subscribe, print, zzz=1)
