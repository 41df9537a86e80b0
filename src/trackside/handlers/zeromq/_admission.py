"""Who is let in: the allow-list behind every socket that binds with keys, which libzmq asks at each handshake (ZAP)."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trackside.events import ConfigError
from trackside.handlers.zeromq._keys import load_accepted
from trackside.handlers.zeromq._zmq import z85, zmq

DOMAIN: Final = b"trackside"
_ZAP: Final = "inproc://zeromq.zap.01"
_REQUEST_PARTS: Final = 7
_READ_AGAIN_S: Final = 1.0
_AT_ONCE: Final = 256

_logger = logging.getLogger("trackside")


class AllowList:
    """
    The public keys in a directory, and the role of each.

    The directory is read again when it has changed, so a new generation is accepted, and a removed key refused, without
    a restart. While it cannot be read the last list stays in force.

    Raises:
        ConfigError: The directory, or a key in it, cannot be read.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._changed_ns = self._mtime_ns()
        self._roles = load_accepted(self._directory)
        self._read_s = time.monotonic()

    def role_of(self, public: bytes) -> str | None:
        """Return the role of a *public* key, in Z85; None if it is not accepted."""
        changed_ns, now_s = self._mtime_ns(), time.monotonic()
        if changed_ns != self._changed_ns or now_s - self._read_s >= _READ_AGAIN_S:
            try:
                self._roles = load_accepted(self._directory)
            except ConfigError as error:
                if changed_ns != self._changed_ns:
                    _logger.warning("the keys accepted stay as they were: %s", error)
            self._changed_ns, self._read_s = changed_ns, now_s
        return self._roles.get(public)

    def _mtime_ns(self) -> int:
        try:
            return self._directory.stat().st_mtime_ns
        except OSError:
            return -1


class Gatekeeper:
    """
    Answers libzmq's question, at each handshake with a socket of this context, who may come in.

    Has no thread: whoever polls the sockets polls `socket` too, and calls `answer` when it can be read. Until then a
    handshake waits; sockets that `secure_server` made ready refuse everybody once this is closed.
    """

    def __init__(self, context: zmq.Context[Any], allowed: AllowList) -> None:
        self.accepted: Counter[str] = Counter()
        """Handshakes that succeeded, by role."""
        self.refused = 0
        """Handshakes with a key that is not on the list."""
        self._allowed = allowed
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP)

    def answer(self) -> None:
        """Answer what waits, at most a few hundred handshakes."""
        for _ in range(_AT_ONCE):
            try:
                request = self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            with contextlib.suppress(zmq.Again):
                self.socket.send_multipart(self._decide(request), zmq.DONTWAIT)

    def close(self) -> None:
        """Answer no more; whoever comes now is refused."""
        self.socket.close(0)

    def _decide(self, request: Sequence[bytes]) -> list[bytes]:
        user = b""
        if len(request) == _REQUEST_PARTS and request[0] == b"1.0" and request[5] == b"CURVE":
            user = self._user(request[6])
        if not user:
            self.refused += 1
        number = request[1] if len(request) > 1 else b""
        status = (b"200", b"OK") if user else (b"400", b"this key is not accepted")
        return [b"1.0", number, *status, user, b""]

    def _user(self, key: bytes) -> bytes:
        public = z85.encode(key)
        role = self._allowed.role_of(public)
        if role is None:
            return b""
        self.accepted[role] += 1
        return f"{role}:{fingerprint(public)}".encode()


def fingerprint(public: bytes) -> str:
    """Return a short name of a *public* key, for people."""
    return hashlib.sha256(public).hexdigest()[:8]


def user_of(part: zmq.Frame) -> tuple[str, str]:
    """
    Return role and fingerprint of whoever sent a message *part*, as its connection proved them.

    Both are empty where no keys are in use.
    """
    try:
        role, _, name = str(part.get("User-Id")).partition(":")
    except zmq.ZMQError:
        return "", ""
    return role, name
