"""The options of every socket, in one place: nothing waits for ever, and nothing grows without a bound."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from trackside.events import ConfigError
from trackside.handlers.zeromq._admission import DOMAIN
from trackside.handlers.zeromq._keys import ClientKeys, KeyPair
from trackside.handlers.zeromq._zmq import zmq

OLDEST_LIBZMQ: Final = (4, 3, 5)
"""Older ones can be brought down by whoever reaches a port, keys or not."""
MOST_MESSAGE_BYTES: Final = 1 << 20
"""Of one part of a message; a peer that sends more is disconnected. Frames are smaller (640 KiB)."""
HANDSHAKE_MS: Final = 3000
"""How long a peer may take to say who it is; until then it holds a descriptor."""
KEEPALIVE_S: Final = 5
"""After so long in silence the kernel asks whether the other machine is still there, three times, 2 s apart."""
LIFE_MS: Final = 15_000
"""After so long with nothing acknowledged a connection counts as broken, also where the network never says so."""
RECONNECT_MS: Final = 100
MOST_RECONNECT_MS: Final = 2000
_ZERO_COPY_RECEIVE: Final = 10
"""``ZMQ_ZERO_COPY_RECV``, which pyzmq has no name for."""
BACKLOG: Final = 4096
"""Connections that may wait to be accepted: all ranks may come back at once."""


def new_context(*, io_threads: int = 1) -> zmq.Context[zmq.Socket[bytes]]:
    """
    Return a context of one's own.

    Raises:
        ConfigError: The libzmq that is installed is too old to meet strangers, or was built without encryption.
    """
    found = zmq.zmq_version_info()
    if found < OLDEST_LIBZMQ or not zmq.has("curve"):
        raise ConfigError(
            "libzmq",
            zmq.zmq_version(),
            "it must be 4.3.5 or newer, with CURVE: `pip install --force-reinstall --only-binary :all: pyzmq`",
        )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads)
    # Else each message that waits to be read, however small, holds the 8 KiB in which it arrived: of thousands of
    # senders that adds up. Where a libzmq does not have the option, it does just that.
    with contextlib.suppress(zmq.ZMQError):
        context.set(_ZERO_COPY_RECEIVE, 0)
    return context


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, *, send_high_water: int, receive_high_water: int
) -> zmq.Socket[bytes]:
    """
    Return a socket with all limits set, still to be bound or connected.

    Args:
        context: From `new_context`.
        kind: ``zmq.ROUTER``, ``zmq.DEALER``, …
        send_high_water: Messages that may wait for one peer; a send beyond it is refused. Bytes are the caller's to
            count: messages of the largest size make of 8 already 8 MiB.
        receive_high_water: Messages of one peer that may wait to be read here.
    """
    socket = context.socket(kind)
    options: dict[int, int] = {
        zmq.LINGER: 0,
        zmq.MAXMSGSIZE: MOST_MESSAGE_BYTES,
        zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
        # No heartbeats of ZMTP's: libzmq aborts the process if one is due on a connection that its peer has closed
        # while the queue behind it was full (4.3.5, stream_engine_base.cpp: !_io_error). Ends have beats of their own.
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
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a send to nobody, or to a peer that is full, says so
    return socket


def secure_server(socket: zmq.Socket[Any], key: KeyPair) -> None:
    """
    Let only peers in that know the public half of *key*, and whose own key the context's `Gatekeeper` accepts.

    Without a gatekeeper nobody gets in.
    """
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def secure_client(socket: zmq.Socket[Any], keys: ClientKeys) -> None:
    """Prove with *keys* who this end is, and talk to nobody but the server they name."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret)
