"""Which endpoints are safe to use, and which need keys or an explicit word."""

from __future__ import annotations

import enum
import os
import re
from pathlib import Path
from typing import Final

from trackside.events import ConfigError
from trackside.handlers.zeromq._keys import check_private

_TCP: Final = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|\*|[A-Za-z0-9_.\-]+):([0-9]{1,5}|\*)")
_MOST_PORT: Final = 65_535
_MOST_PATH_BYTES: Final = 107
"""What the address of a Unix socket holds."""


class Safety(enum.Enum):
    """What protects an endpoint."""

    PRIVATE = "private"
    """The file system: a socket in a directory that is this user's alone."""
    KEYED = "keyed"
    """CURVE: both ends prove who they are, and everything is encrypted."""
    INSECURE = "insecure"
    """Nothing; somebody said that this is what they want. No control verb is accepted here."""

    @property
    def takes_control(self) -> bool:
        """Whether control verbs may be accepted on such an endpoint."""
        return self is not Safety.INSECURE


def check_endpoint(
    endpoint: str, *, has_keys: bool = False, insecure: bool = False, binds: bool = False, field: str = "endpoint"
) -> Safety:
    """
    Return what protects *endpoint*.

    Args:
        endpoint: ``ipc:///path`` or ``tcp://host:port``; port ``*`` lets the system choose when binding.
        has_keys: Whether keys will be used on it.
        insecure: Whether to use it without any protection all the same.
        binds: Whether it will be bound. The directory of an ``ipc`` endpoint is then made if it does not exist.
        field: What to call it in errors.

    Raises:
        ConfigError: It is malformed, of another transport, or neither protected nor declared insecure.
    """
    if endpoint.startswith("ipc://"):
        return _check_ipc(endpoint, has_keys=has_keys, insecure=insecure, binds=binds, field=field)
    match = _TCP.fullmatch(endpoint)
    is_port = match is not None and (match[2] == "*" if binds and match[2] == "*" else _is_port(match[2]))
    if match is None or not is_port or (match[1] == "*" and not binds):
        raise ConfigError(field, endpoint, "give ipc:///directory/name or tcp://host:port")
    return _protected(endpoint, has_keys=has_keys, insecure=insecure, field=field)


def _is_port(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) <= _MOST_PORT


def _protected(endpoint: str, *, has_keys: bool, insecure: bool, field: str) -> Safety:
    if has_keys:
        return Safety.KEYED
    if insecure:
        return Safety.INSECURE
    raise ConfigError(
        field,
        endpoint,
        "anybody who reaches it could read and send: give keys (`trackside keys new DIR`), or insecure=True if that "
        "is what you want",
    )


def _check_ipc(endpoint: str, *, has_keys: bool, insecure: bool, binds: bool, field: str) -> Safety:
    name = endpoint.removeprefix("ipc://")
    if name.startswith("@"):  # an abstract name, which has no permissions
        return _protected(endpoint, has_keys=has_keys, insecure=insecure, field=field)
    path = Path(name)
    if not path.is_absolute() or name.endswith("/") or path.name in {"", "*"}:
        raise ConfigError(field, endpoint, "give ipc:// and an absolute path, as in ipc:///run/user/1000/ts/job")
    length = len(os.fsencode(path))
    if length > _MOST_PATH_BYTES:
        raise ConfigError(field, endpoint, f"a path of {length} bytes; sockets have room for {_MOST_PATH_BYTES}")
    if has_keys:
        return Safety.KEYED
    directory = path.parent
    if binds:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif not directory.exists():
        raise ConfigError(field, endpoint, f"there is no {directory}; is the job running, on this machine?")
    try:
        check_private(directory, field)
    except ConfigError:
        if not insecure:
            raise
        return Safety.INSECURE
    return Safety.PRIVATE
