"""What the ``OTEL_*`` variables say that the exporters do not read themselves."""

from __future__ import annotations

import os

from trackside.events import ConfigError


def is_on(signal: str, *, given: bool | None) -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return given if given is not None else os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() != "none"


def check_protocol(signal: str) -> None:
    for name in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        given = os.environ.get(name, "").strip()
        if given and given != "http/protobuf":
            raise ConfigError(
                name, given, "set http/protobuf, and the endpoint to the collector's HTTP port, mostly 4318"
            )
        if given:
            return


def whole(name: str, default: int) -> int:
    given = os.environ.get(name, "").strip()
    if not given:
        return default
    if not given.isdecimal() or not int(given):
        raise ConfigError(name, given, "give a whole number of at least 1")
    return int(given)


def milliseconds(name: str, default: int) -> float:
    return whole(name, default) / 1000
