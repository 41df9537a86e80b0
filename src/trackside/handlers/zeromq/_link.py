"""One socket with everything around it: limits, keys, admission, and a way to be woken."""

from __future__ import annotations

import contextlib
import os
import re
import socket as network
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from trackside.events import ConfigError
from trackside.handlers.zeromq._admission import AllowList, Gatekeeper, user_of
from trackside.handlers.zeromq._endpoints import Safety, check_endpoint
from trackside.handlers.zeromq._keys import load_client_keys, load_server_key
from trackside.handlers.zeromq._sockets import new_context, open_socket, secure_client, secure_server
from trackside.handlers.zeromq._zmq import zmq

SEND_MESSAGES: Final = 1024
"""That may wait for one peer. What they may hold together is bounded by what is acknowledged."""
RECEIVE_MESSAGES: Final = 1024
_GOODBYE_MS: Final = 100
_PROBE_S: Final = 1.0
_MAPPED: Final = re.compile(r"\[::ffff:([0-9.]+)\]")
"""An IPv4 address as sockets of both families write it."""


class Link:
    """
    A ROUTER that binds, or a DEALER that connects. For one thread, but for `wake`.

    Args:
        endpoint: ``ipc:///path`` or ``tcp://host:port``.
        binds: Whether it is bound there.
        role: Whose key to use when connecting; ``viewer`` keys do for whoever has no other.
        keys: A directory of keys; None for none.
        insecure: Do without where they are needed.
        receive_messages: Of one peer, that may wait to be received.

    Raises:
        ConfigError: The endpoint is not safe, not free or malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        binds: bool,
        role: str = "viewer",
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        receive_messages: int = RECEIVE_MESSAGES,
    ) -> None:
        self.safety: Safety = check_endpoint(endpoint, has_keys=keys is not None, insecure=insecure, binds=binds)
        self._binds = binds
        self._context = new_context()
        self._gatekeeper: Gatekeeper | None = None
        self._woken, self._waker = network.socketpair()
        self._woken.settimeout(0)
        self._waker.settimeout(0)
        self._is_closed = False
        self._no_wait = int(zmq.DONTWAIT)
        self._more_to_come = int(zmq.DONTWAIT | zmq.SNDMORE)
        self._path: Path | None = None
        self._socket = open_socket(
            self._context,
            zmq.ROUTER if binds else zmq.DEALER,
            send_high_water=SEND_MESSAGES,
            receive_high_water=receive_messages,
        )
        try:
            if keys is not None and binds:
                self._gatekeeper = Gatekeeper(self._context, AllowList(keys))
                secure_server(self._socket, load_server_key(keys))
            elif keys is not None:
                secure_client(self._socket, load_client_keys(keys, role))
            self.endpoint = self._join(endpoint)
        except BaseException:
            self.close()
            raise
        self._poller = zmq.Poller()
        for readable in (self._socket, self._woken, *([self._gatekeeper.socket] if self._gatekeeper else [])):
            self._poller.register(readable, zmq.POLLIN)

    def _join(self, endpoint: str) -> str:
        """Bind or connect; return where that led to."""
        if not self._binds:
            self._socket.connect(endpoint)
            return endpoint
        if endpoint.startswith("ipc://") and is_served(endpoint):
            raise ConfigError("endpoint", endpoint, "somebody is there already; close that, or name another")
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError("endpoint", endpoint, f"it cannot be bound: {error}") from error
        if endpoint.startswith("ipc:///"):
            self._path = Path(endpoint.removeprefix("ipc://"))
        bound = str(self._socket.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        return _MAPPED.sub(r"\1", bound)

    def wake(self) -> None:
        """End a `wait`; on any thread, and from the porter: never waits."""
        with contextlib.suppress(OSError):  # full, which is as good; or closed
            self._waker.send(b"!")

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to receive, somebody wakes us, or time is up."""
        for readable, _ in self._poller.poll(int(timeout_s * 1000)):
            self._notice(readable)

    def _notice(self, readable: Any) -> None:
        if readable == self._woken.fileno():
            with contextlib.suppress(OSError):
                self._woken.recv(65536)
        elif self._gatekeeper is not None and readable is self._gatekeeper.socket:
            self._gatekeeper.answer()

    def receive(self, most: int) -> Iterator[tuple[bytes, list[bytes], str]]:
        """Yield at most *most* messages: who sent it, its parts, and role and fingerprint of the sender's key."""
        # Part by part, with flags that are plain numbers: the library's own loop takes as long again.
        receive, again, no_wait = self._socket.recv, zmq.Again, self._no_wait
        for _ in range(most):
            try:
                address = receive(no_wait) if self._binds else b""
                frames = [receive(no_wait, copy=False)]
                while frames[-1].more:
                    frames.append(receive(no_wait, copy=False))
            except again:
                return
            user = ":".join(user_of(frames[-1])).strip(":") if self._gatekeeper is not None else ""
            yield address, [frame.bytes for frame in frames], user

    def send(self, address: bytes, parts: Sequence[bytes]) -> bool | None:
        """Send *parts* to *address*; False if there is no room now, None if nobody is there."""
        send = self._socket.send
        try:
            if self._binds:
                send(address, self._more_to_come)
            for part in parts[:-1]:
                send(part, self._more_to_come)
            send(parts[-1], self._no_wait)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return None
            raise
        return True

    def close(self) -> None:
        """Close everything; what was just sent has a tenth of a second to leave."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._gatekeeper is not None:
            self._gatekeeper.close()
        if self._path is not None:
            # Before anybody else can have bound it: libzmq leaves it behind.
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._socket.close(_GOODBYE_MS)
        self._context.term()
        self._woken.close()
        self._waker.close()


def wait_for(links: Sequence[Link], timeout_s: float) -> None:
    """Wait as `Link.wait` does, for several of one thread."""
    if len(links) == 1:
        links[0].wait(timeout_s)
        return
    poller = zmq.Poller()
    for link in links:
        for readable, _ in link._poller.sockets:  # noqa: SLF001  of this module
            poller.register(readable, zmq.POLLIN)
    for readable, _ in poller.poll(int(timeout_s * 1000)):
        for link in links:
            link._notice(readable)  # noqa: SLF001


def is_served(endpoint: str) -> bool:
    """Return whether somebody listens there; what a killed process has left, libzmq replaces."""
    path: Any = endpoint.removeprefix("ipc://")
    if path.startswith("@"):
        path = b"\0" + os.fsencode(path[1:])
    with network.socket(network.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
