"""Times as people write them."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Final

from trackside.events import ConfigError

_LATEST_S: Final = 4_000_000_000
"""The year 2096."""
_UNIX: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_ISO: Final = re.compile(
    r"(?P<year>\d{4})-?(?P<month>\d\d)-?(?P<day>\d\d)"
    r"(?:[Tt ](?P<hour>\d\d):?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r" ?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)
_FORMS: Final = "give a time as 2026-01-31T12:00:00Z or in seconds since 1970"


def time_ns(option: str, text: str) -> int:
    """
    Return the time that *text* names, in ns since the epoch.

    Args:
        option: Where it was given.
        text: ISO 8601 with a zone, or seconds since the epoch.

    Raises:
        ConfigError: It is neither; or it has no zone, so that the moment is not known.
    """
    if _UNIX.fullmatch(text):
        at_ns = int(Decimal(text) * 10**9)
    else:
        found = _ISO.fullmatch(text)
        if found is None:
            raise ConfigError(option, text, _FORMS)
        if found["zone"] is None:
            raise ConfigError(option, text, "it has no time zone; add Z, or an offset such as +01:00")
        try:
            at_ns = _iso_ns(found)
        except (ValueError, OverflowError) as error:
            raise ConfigError(option, text, f"{error}; {_FORMS}") from error
    if not 0 <= at_ns < _LATEST_S * 10**9:
        raise ConfigError(option, text, f"no job ran then; {_FORMS}")
    return at_ns


def _iso_ns(found: re.Match[str]) -> int:
    year, month, day, hour, minute, second = (
        int(found[part] or 0) for part in ("year", "month", "day", "hour", "minute", "second")
    )
    at = datetime.datetime(year, month, day, hour, minute, second, tzinfo=_zone(found["zone"]))
    since = at - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    fraction = (found["fraction"] or "")[:9].ljust(9, "0")
    return (since.days * 86_400 + since.seconds) * 10**9 + int(fraction)


def _zone(text: str) -> datetime.timezone:
    if text in {"Z", "z"}:
        return datetime.timezone.utc
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = datetime.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return datetime.timezone(-offset if text[0] == "-" else offset)
