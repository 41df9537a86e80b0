"""Named values that a script or a framework logs, and the hyper-parameters of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trackside.bus import default_bus, stat
from trackside.events import ConfigError, ConfigLogged, MetricsLogged, ambient
from trackside.instruments._span import tolerated

_NO_VALUES: Final[Mapping[str, Any]] = {}


def metrics(values: Mapping[str, Any] = _NO_VALUES, /, *, step: int | None = None, **named: Any) -> None:
    """
    Record named values at the current step.

    ::

        trackside.metrics(loss=0.1, lr=3e-4)
        trackside.metrics({"eval/accuracy": 0.93}, step=100)

    All of them are one `MetricsLogged` event, and each number is a `stat` of the same name too, so that reports and
    sinks show it as a curve. A value that is no number is only in the event, unchanged.

    Args:
        values: The values by name, for names that are no Python identifiers.
        step: The step that they belong to; the one around the call unless given, -1 for none.
        named: More values.
    """
    if default_bus.is_idle:
        return
    try:
        all_values = {str(name): _plain(value) for name, value in {**values, **named}.items()}
    except (TypeError, ValueError):
        tolerated("metrics", ConfigError("metrics", values, "give a mapping of names to values"))
        return
    if default_bus.wants(MetricsLogged):
        default_bus.log(MetricsLogged(values=all_values, step=ambient.get()[1] if step is None else step))
    for name, value in all_values.items():
        if value.__class__ is float or value.__class__ is int:
            _record(name, value)


def _record(name: str, value: float) -> None:
    try:
        stat(name).record(value)
    except ConfigError as error:  # the name is not valid for a stat: only the event has the value
        tolerated(name, error)


def _plain(value: Any) -> Any:
    """Return *value* as a plain number, if that costs nothing: a tensor on a device is detached, and read later."""
    if value.__class__ in {float, int, bool, str}:
        return value
    detach = getattr(value, "detach", None)
    if detach is not None:
        value = detach()
        if getattr(getattr(value, "device", None), "type", "cpu") != "cpu":
            return value
    item = getattr(value, "item", None)
    if item is None:
        return value
    try:
        return item()
    except (TypeError, ValueError, RuntimeError):  # there is more than one number in it
        return value


def config(values: Mapping[str, Any]) -> None:
    """
    Record the hyper-parameters of the run, for reports and comparisons.

    ::

        trackside.config({"lr": 3e-4, "batch_size": 64, "model": {"layers": 12}})

    Args:
        values: By name; nested mappings are flattened, for example to ``model.layers``. A value that is no text,
            number, flag or None is recorded as text.
    """
    if default_bus.wants(ConfigLogged):
        try:
            default_bus.log(ConfigLogged(values=_flat(values)))
        except (AttributeError, TypeError, RecursionError):
            tolerated("config", ConfigError("config", values, "give a mapping of names to values"))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{name}."))
        else:
            found[name] = value if value is None or isinstance(value, (str, bool, int, float)) else str(value)
    return found
