"""One ZeroMQ socket: its endpoint, protection, options and keys, reconnecting, and the connections it has accepted."""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import os
import random
import re
import socket as network
import struct
import time
import weakref
from _thread import start_new_thread
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from trackside._platform import HAS_ABSTRACT_SOCKETS, HAS_UNIX_SOCKETS, SYSTEM
from trackside.core import RateLimitedLog, described
from trackside.events import ConfigError
from trackside.handlers.zeromq._keys import (
    CONTROL,
    DOMAIN,
    ROLES,
    VIEWER,
    AllowList,
    Authenticator,
    ClientKeys,
    KeyPair,
    check_private,
    load_client_keys,
    load_server_key,
    user_of,
    zmq,
)
from trackside.handlers.zeromq._protocol import (
    PUBLISHER_CONNECTIONS,
    RECEIVE_MESSAGES,
    RENEW_AFTER_S,
    RENEW_AT_MOST_S,
    SEND_MESSAGES,
    ConnectionLimits,
)
from trackside.handlers.zeromq._session import Sent

OLDEST_LIBZMQ: Final = (4, 3, 5)
"""The oldest safe version of libzmq: anybody who reaches a port can crash an older one, with or without keys."""
MOST_MESSAGE_BYTES: Final = 1 << 20
"""The largest part of a message; a peer that sends a larger one is disconnected. Frames are smaller (640 KiB)."""
HANDSHAKE_MS: Final = 3000
"""The time in which a peer must finish its handshake; until then it holds a descriptor."""
KEEPALIVE_S: Final = 5
"""After this long in silence the kernel probes the other machine, three times, 2 s apart."""
LIFE_MS: Final = 15_000
"""A connection counts as broken after this long without an acknowledgement, even if the network reports no error."""
RECONNECT_MS: Final = 100
MOST_RECONNECT_MS: Final = 2000
SUBSCRIPTIONS_AT_ONCE: Final = 8
"""The most subscriptions of one reader that may wait. A send reads all that wait; a flood would block it."""
MOST_SUBSCRIPTION_BYTES: Final = 1 << 10
"""The longest topic that a reader may name, and the longest message of its handshake; a longer one disconnects it."""
MOST_TOPICS_BYTES: Final = 64 << 10
"""
The most bytes of topics that the readers of one address may subscribe to together: libzmq keeps a node for each byte.
"""
_TOPIC_BYTES: Final = 64
"""The least number of bytes that a subscription counts for."""
_ZERO_COPY_RECEIVE: Final = 10
"""``ZMQ_ZERO_COPY_RECV``, for which pyzmq has no name."""
BACKLOG: Final = 4096
"""Connections that may wait to be accepted: all ranks may come back at once."""


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """
    Return a new context.

    Raises:
        ConfigError: The installed libzmq is too old to be safe from strangers, or was built without encryption.
    """
    found = zmq.zmq_version_info()
    if found < OLDEST_LIBZMQ or not zmq.has("curve"):
        raise ConfigError(
            "libzmq",
            zmq.zmq_version(),
            "it must be 4.3.5 or newer, with CURVE: `pip install --force-reinstall --only-binary :all: pyzmq`",
        )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    # Otherwise each waiting message, however small, holds the 8 KiB in which it arrived, which adds up with thousands
    # of senders. A libzmq without this option has that cost.
    with contextlib.suppress(zmq.ZMQError):
        context.set(_ZERO_COPY_RECEIVE, 0)
    return context


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, *, send_high_water: int, receive_high_water: int
) -> zmq.Socket[bytes]:
    """
    Return a socket with all limits set, still to be bound or connected.

    Args:
        context: A context from `new_context`.
        kind: ``zmq.ROUTER``, ``zmq.DEALER``, …
        send_high_water: The most messages that may wait for one peer; further ones are refused. The caller must bound
            the bytes: 8 messages of the largest size take 8 MiB.
        receive_high_water: The most messages of one peer that may wait to be read here.
    """
    socket = context.socket(kind)
    options: dict[int, int] = {
        zmq.LINGER: 0,
        zmq.MAXMSGSIZE: MOST_MESSAGE_BYTES,
        zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
        # No ZMTP heartbeats: libzmq aborts the process if one is due on a connection that its peer has closed
        # while the queue behind it was full (4.3.5, stream_engine_base.cpp: !_io_error). Both ends send beats instead.
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: KEEPALIVE_S,
        zmq.TCP_KEEPALIVE_INTVL: 2,
        zmq.TCP_KEEPALIVE_CNT: 3,
        zmq.TCP_MAXRT: LIFE_MS,
        zmq.RECONNECT_IVL: RECONNECT_MS,
        zmq.RECONNECT_IVL_MAX: MOST_RECONNECT_MS,
        zmq.SNDHWM: send_high_water,
        zmq.RCVHWM: receive_high_water,
        zmq.BACKLOG: BACKLOG,
        zmq.IPV6: 1,
    }
    for option, value in options.items():
        socket.setsockopt(option, value)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a send to a peer that is gone or full fails
    return socket


def secure_server(socket: zmq.Socket[Any], key: KeyPair) -> None:
    """
    Accept only peers that know the public half of *key*, and whose own key the context's `Authenticator` accepts.

    Without an authenticator every peer is refused.
    """
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def secure_client(socket: zmq.Socket[Any], keys: ClientKeys) -> None:
    """Authenticate this end with *keys*, and connect only to the server whose public key they hold."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret)


_TCP: Final = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|\*|[A-Za-z0-9_.\-]+):([0-9]{1,5}|\*)")
_MOST_PORT: Final = 65_535
_MOST_PATH_BYTES: Final = 107
"""The longest path of a Unix socket."""


class Safety(enum.Enum):
    """The protection of an endpoint."""

    PRIVATE = "private"
    """The file system: a socket in a directory that is this user's alone."""
    KEYED = "keyed"
    """CURVE: both ends prove who they are, and everything is encrypted."""
    INSECURE = "insecure"
    """No protection, because the configuration asks for it. No control verb is accepted here."""

    @property
    def takes_control(self) -> bool:
        """Whether control verbs may be accepted on such an endpoint."""
        return self is not Safety.INSECURE


def check_endpoint(
    endpoint: str, *, has_keys: bool = False, insecure: bool = False, binds: bool = False, field: str = "endpoint"
) -> Safety:
    """
    Return the protection of *endpoint*.

    Args:
        endpoint: ``ipc:///path`` or ``tcp://host:port``; port ``*`` lets the system choose when binding.
        has_keys: Whether keys will be used on it.
        insecure: Whether it may be used without any protection.
        binds: Whether it will be bound. The directory of an ``ipc`` endpoint is then made if it does not exist.
        field: The name of the setting in errors.

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
        "anybody who reaches it could read and send: give keys (`trackside keys new DIR`), or insecure=True "
        "(--insecure) if that is what you want",
    )


def _check_ipc(endpoint: str, *, has_keys: bool, insecure: bool, binds: bool, field: str) -> Safety:
    name = endpoint.removeprefix("ipc://")
    if not (HAS_ABSTRACT_SOCKETS if name.startswith("@") else HAS_UNIX_SOCKETS):
        raise ConfigError(field, endpoint, f"there are no such sockets on {SYSTEM}; give tcp://host:port, with keys")
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
    try:
        if binds:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.lstat()
    except FileNotFoundError:
        raise ConfigError(field, endpoint, f"there is no {directory}; is the job running, on this machine?") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(field, endpoint, f"{directory}: {reason}; name a directory of your own") from error
    try:
        check_private(directory, field)
    except ConfigError:
        if not insecure:
            raise
        return Safety.INSECURE
    return Safety.PRIVATE


_LISTENING_S: Final = 0.5
_GOODBYE_MS: Final = 100
_PROBE_S: Final = 1.0
_MAPPED: Final = re.compile(r"\[::ffff:([0-9.]+)\]")
"""An IPv4 address as sockets of both families write it."""


class SilenceTimer:
    """
    Measures for how long a connection was silent, and decides when to reconnect.

    The time between two attempts doubles, from 8 s up to 30 s.
    """

    def __init__(self, now_s: float) -> None:
        self.attempts = 0
        """The number of times that the connection was made anew since the last message."""
        self._listened_s = now_s
        self._silence_s = 0.0
        self._wait_s = RENEW_AFTER_S
        self._chance = random.Random()  # noqa: S311  not the program's, whose order is its own

    def end(self) -> None:
        """Note that a message was received."""
        self.attempts = 0
        self._silence_s = 0.0
        self._wait_s = RENEW_AFTER_S

    def is_due(self, now_s: float) -> bool:
        """Return whether to reconnect now; to be called at least twice a second."""
        # Only time in which the connection is read counts: a viewer may leave it unread for an hour.
        self._silence_s += min(now_s - self._listened_s, _LISTENING_S)
        self._listened_s = now_s
        if self._silence_s < self._wait_s:
            return False
        self.attempts += 1
        self._silence_s = 0.0
        # At random, because thousands of ranks may lose the same collector at once.
        self._wait_s = min(2 * self._wait_s, RENEW_AT_MOST_S) * self._chance.uniform(0.8, 1.0)
        return True


class Connection:
    """
    A ROUTER or XPUB that binds, or a DEALER that connects. Only one thread may use it; any thread may call `wake`.

    Args:
        endpoint: ``ipc:///path`` or ``tcp://host:port``.
        binds: Whether it is bound there.
        broadcasts: Whether the bound socket is an XPUB: addresses are topics then, and only subscriptions are received.
        role: The role whose key to use when connecting; by default ``viewer``.
        keys: A directory of keys; None for none.
        insecure: Allow an endpoint without keys where they are required.
        receive_messages: The most messages of one peer that may wait to be received.
        limits: The most connections that it keeps, if it binds; by default, as many as a job's viewers need.

    Raises:
        ConfigError: The endpoint is not safe, not free or malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        binds: bool,
        broadcasts: bool = False,
        role: str = "viewer",
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        receive_messages: int = RECEIVE_MESSAGES,
        limits: ConnectionLimits = PUBLISHER_CONNECTIONS,
    ) -> None:
        self.safety: Safety = check_endpoint(endpoint, has_keys=keys is not None, insecure=insecure, binds=binds)
        self._binds = binds
        self._broadcasts = broadcasts
        self._context = new_context()
        # If nobody closes the connection, a new thread ends its context: within the garbage collection that would wait
        # for ever for sockets that are collected later. The collection may interrupt `threading`, so `_thread` is used.
        self._end = weakref.finalize(self, start_new_thread, self._context.term, ())
        self._end.atexit = False
        self._authenticator: Authenticator | None = None
        self._accepted: AcceptedConnections | None = None
        self._woken, self._waker = network.socketpair()
        self._woken.settimeout(0)
        self._waker.settimeout(0)
        self._is_closed = False
        self._no_wait = int(zmq.DONTWAIT)
        self._more_to_come = int(zmq.DONTWAIT | zmq.SNDMORE)
        self._path: Path | None = None
        self._role = role
        self._keys = keys
        self._receive_messages = receive_messages
        self._silence = SilenceTimer(time.monotonic())
        # At most one line a minute of each kind: the other end decides how often it falls silent and answers.
        self._silent, self._barred, self._heard = RateLimitedLog(), RateLimitedLog(), RateLimitedLog()
        self._latest: zmq.Frame | None = None
        self._socket = self._new_socket()
        try:
            if binds:
                self._accepted = AcceptedConnections(self._context, self._socket, limits)
            if keys is not None and binds:
                # libzmq itself accepts subscriptions, so peers that may not watch are refused in the handshake.
                roles = (VIEWER, CONTROL) if broadcasts else ROLES
                self._authenticator = Authenticator(self._context, AllowList(keys), roles)
                secure_server(self._socket, load_server_key(keys))
            elif keys is not None:
                secure_client(self._socket, load_client_keys(keys, role))
            self.endpoint = self._join(endpoint)
        except BaseException:
            self.close()
            raise
        self._poller = zmq.Poller()
        self._duties: dict[Any, Callable[[], None]] = {}
        if self._authenticator is not None:
            self._duties[self._authenticator.socket] = self._authenticator.answer
        if self._accepted is not None:
            self._duties[self._accepted.socket] = self._accepted.follow
            if broadcasts:
                self._duties[self._socket] = self._follow_subscriptions
        for readable in {self._socket, self._woken, *self._duties}:
            self._poller.register(readable, zmq.POLLIN)

    def _new_socket(self) -> zmq.Socket[bytes]:
        if not self._broadcasts:
            kind = zmq.ROUTER if self._binds else zmq.DEALER
            return open_socket(
                self._context, kind, send_high_water=SEND_MESSAGES, receive_high_water=self._receive_messages
            )
        socket = open_socket(
            self._context, zmq.XPUB, send_high_water=SEND_MESSAGES, receive_high_water=SUBSCRIPTIONS_AT_ONCE
        )
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # each subscription costs memory, also one to a known topic
        socket.setsockopt(zmq.MAXMSGSIZE, MOST_SUBSCRIPTION_BYTES)
        return socket

    def renew(self, now_s: float) -> bool:
        """
        Reconnect if no message was received for too long; return whether that was done.

        libzmq reconnects by itself after a network failure, but not after the other end sent something else than ZMTP,
        or refused a key.
        """
        if self._binds or not self._silence.is_due(now_s):
            return False
        if self._silence.attempts == 1:
            self._silent.complain(
                "nothing has been heard from %s for %.0f s; connecting anew until it answers",
                self.endpoint,
                RENEW_AFTER_S,
            )
        fresh = None
        try:
            fresh = self._new_socket()
            if self._keys is not None:
                secure_client(fresh, load_client_keys(self._keys, self._role))
            fresh.connect(self.endpoint)
        except (ConfigError, zmq.ZMQError) as error:  # the keys are being replaced, or there is no descriptor left
            if fresh is not None:
                fresh.close(0)  # else `close` would wait for it for ever
            self._barred.complain("%s cannot be connected to anew: %s", self.endpoint, described(error))
            return False
        self._poller.unregister(self._socket)
        self._socket.close(0)
        self._socket = fresh
        self._poller.register(fresh, zmq.POLLIN)
        return True

    def _join(self, endpoint: str) -> str:
        """Bind or connect; return the resulting endpoint."""
        if not self._binds:
            self._socket.connect(endpoint)
            return endpoint
        if endpoint.startswith("ipc://") and is_served(endpoint):
            raise ConfigError("endpoint", endpoint, "it is in use already; close that, or name another")
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError("endpoint", endpoint, f"it cannot be bound: {error}") from error
        if endpoint.startswith("ipc:///"):
            self._path = Path(endpoint.removeprefix("ipc://"))
        bound = str(self._socket.get_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        return _MAPPED.sub(r"\1", bound)

    def wake(self) -> None:
        """End a `wait`; never blocks, so any thread may call it, the dispatcher too."""
        with contextlib.suppress(OSError):  # the buffer is full, so `wait` ends anyway, or the socket is closed
            self._waker.send(b"!")

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something to receive, another thread wakes this one, or *timeout_s* is over."""
        until_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while left_s >= 0:
            found = self._poller.poll(int(left_s * 1000))
            for readable, _ in found:
                self._notice(readable)
            if not found or any(readable not in self._duties for readable, _ in found):
                return
            left_s = until_s - time.monotonic()

    def _notice(self, readable: Any) -> None:
        if readable == self._woken.fileno():
            with contextlib.suppress(OSError):
                self._woken.recv(65536)
        elif readable in self._duties:
            self._duties[readable]()

    def receive(self, most: int) -> Iterator[tuple[bytes, list[bytes], str]]:
        """Yield at most *most* messages: sender's address, parts, and role and fingerprint of the sender's key."""
        # This reads part by part, with flags that are plain numbers: pyzmq's own loop takes twice as long.
        receive, again, no_wait = self._socket.recv, zmq.Again, self._no_wait
        for _ in range(most):
            try:
                address = receive(no_wait) if self._binds else b""
                frames = [receive(no_wait, copy=False)]
                while frames[-1].more:
                    frames.append(receive(no_wait, copy=False))
            except again:
                return
            if not self._binds:
                if self._silence.attempts:
                    self._heard.complain("%s answers again", self.endpoint)
                self._silence.end()
            self._latest = frames[-1]
            user = ":".join(user_of(frames[-1])).strip(":") if self._authenticator is not None else ""
            yield address, [frame.bytes for frame in frames], user

    def _follow_subscriptions(self) -> None:
        """Read the subscriptions, and end the connections of an address that subscribes to too much."""
        assert self._accepted is not None
        for _ in range(RECEIVE_MESSAGES):
            try:
                self._latest = self._socket.recv(self._no_wait, copy=False)
            except zmq.Again:
                return
            subscription = self._latest.bytes
            if not subscription.startswith(_UNSUBSCRIBED):
                self._accepted.subscribe(self.origin(), len(subscription))

    def origin(self) -> str:
        """
        Return the origin of the message that was read last; empty if it is unknown.

        The origin is an IPv4 address, the /64 network of an IPv6 address, or a user of this machine.
        """
        try:
            found = str(self._latest.get("Peer-Address")) if self._latest is not None else ""
        except zmq.ZMQError:
            return ""
        return origin_of(found)

    def send(self, address: bytes, parts: Sequence[bytes]) -> Sent:
        """Send *parts* to *address*, without waiting."""
        send = self._socket.send
        try:
            if self._binds:
                send(address, self._more_to_come)
            for part in parts[:-1]:
                send(part, self._more_to_come)
            send(parts[-1], self._no_wait)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return Sent.GONE
            raise
        return Sent.QUEUED

    def close(self) -> None:
        """Close everything; messages that were just sent have 0.1 s to leave."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._authenticator is not None:
            self._authenticator.close()
        if self._accepted is not None:
            self._accepted.close()
        if self._path is not None:
            # libzmq leaves the file. It is removed while this socket is still bound, so it is not another process's.
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._socket.close(_GOODBYE_MS)
        self._context.term()
        self._end.detach()
        self._woken.close()
        self._waker.close()


def wait_for(connections: Sequence[Connection], timeout_s: float) -> None:
    """Wait as `Connection.wait` does, for several connections of one thread."""
    if len(connections) == 1:
        connections[0].wait(timeout_s)
        return
    poller = zmq.Poller()
    for connection in connections:
        for readable, _ in connection._poller.sockets:  # noqa: SLF001  of this module
            poller.register(readable, zmq.POLLIN)
    for readable, _ in poller.poll(int(timeout_s * 1000)):
        for connection in connections:
            connection._notice(readable)  # noqa: SLF001


def is_served(endpoint: str) -> bool:
    """Return whether a process listens at *endpoint*; libzmq replaces the socket file of a killed process."""
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


_EVENT: Final = struct.Struct("=HI")
"""The parts of a monitor's message: the kind of event, and the descriptor of the connection."""
_ENDPOINT: Final = "inproc://accepted"
_UNSUBSCRIBED: Final = b"\0"
_THIS_MACHINE: Final = ""
"""The origin of connections to a Unix socket."""
_NETWORK_BITS: Final = 64


class AcceptedConnections:
    """
    Counts the connections of a bound socket, and ends those beyond its limits, even if they send nothing.

    It also ends the connections of an address that subscribes to more than `MOST_TOPICS_BYTES`.
    libzmq accepts every connection, which then holds a descriptor. This has no thread: the loop that polls the
    socket polls `socket` too, and calls `follow` when it can be read. It must be made before the socket is bound.

    Args:
        context: The context of the socket.
        watched: The socket.
        limits: The most connections that it keeps.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], watched: zmq.Socket[bytes], limits: ConnectionLimits
    ) -> None:
        self.ended = 0
        """Connections that were ended, because there were too many."""
        self._watched = watched
        self._limits = limits
        self._origins: dict[int, str] = {}
        """The origin of each connection, by its descriptor."""
        self._of_address: Counter[str] = Counter()
        self._topics_bytes: Counter[str] = Counter()
        """By origin, the bytes of the topics that it subscribed to since it last had no connection."""
        self._trouble = RateLimitedLog()
        watched.monitor(_ENDPOINT, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.socket: zmq.Socket[Any] = context.socket(zmq.PAIR)
        self.socket.linger = 0
        self.socket.rcvhwm = 0  # libzmq waits, and accepts nobody, while a monitor is full
        self.socket.connect(_ENDPOINT)

    def __len__(self) -> int:
        return len(self._origins)

    def follow(self) -> None:
        """Read which connections came and left, and end those beyond the limits."""
        while True:
            try:
                what, descriptor = _EVENT.unpack(self.socket.recv_multipart(zmq.DONTWAIT)[0])
            except zmq.Again:
                return
            self._leave(descriptor)  # also for a new connection: the system reuses descriptors
            if what == zmq.EVENT_ACCEPTED:
                self._come(descriptor)

    def subscribe(self, origin: str, size_bytes: int) -> None:
        """Note a subscription from *origin*; end all connections of *origin* if it subscribes to too much."""
        origin = origin if origin in self._of_address else _THIS_MACHINE
        self._topics_bytes[origin] += max(size_bytes, _TOPIC_BYTES)
        if self._topics_bytes[origin] <= MOST_TOPICS_BYTES:
            return
        self.follow()
        for descriptor in [one for one, known in self._origins.items() if known == origin]:
            with contextlib.suppress(OSError), _duplicate(descriptor) as connection:
                if _origin_of(connection) == origin:  # else it was closed, and the system has reused the descriptor
                    self._end(connection, origin, "it subscribes to too much")

    def close(self) -> None:
        """Stop following; the watched socket must be closed afterwards."""
        self._watched.monitor(None, 0)
        self.socket.close(0)

    def _leave(self, descriptor: int) -> None:
        origin = self._origins.pop(descriptor, None)
        if origin is not None:
            self._of_address[origin] -= 1
            if not self._of_address[origin]:
                del self._of_address[origin]
                del self._topics_bytes[origin]

    def _come(self, descriptor: int) -> None:
        with contextlib.suppress(OSError), _duplicate(descriptor) as connection:  # the connection may be gone
            origin = _origin_of(connection)
            limits = self._limits
            if len(self._origins) >= limits.of_all or self._of_address[origin] >= limits.of_address:
                self._end(connection, origin, "there are too many")
                return
            self._origins[descriptor] = origin
            self._of_address[origin] += 1

    def _end(self, connection: network.socket, origin: str, reason: str) -> None:
        self.ended += 1
        connection.shutdown(network.SHUT_RDWR)
        self._trouble.complain("a connection of %s is ended: %s", origin or "this machine", reason)


def _duplicate(descriptor: int) -> network.socket:
    """Return a socket with a descriptor of its own: libzmq may close *descriptor* at any time."""
    return network.socket(fileno=os.dup(descriptor))


def _origin_of(connection: network.socket) -> str:
    peer = connection.getpeername()
    return origin_of(peer[0]) if isinstance(peer, tuple) else _THIS_MACHINE


def origin_of(peer: str) -> str:
    """Return the origin of *peer*, an address as libzmq writes it."""
    if peer.startswith("localhost:"):  # of a Unix socket, with user, group and process
        return peer.rpartition(":")[0]
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
