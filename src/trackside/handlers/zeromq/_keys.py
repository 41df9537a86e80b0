"""
Key files, and the allow-list that a server makes from them.

A directory of keys holds two files for each role and generation: ``rank.1.secret`` and ``rank.1.public``. A secret is
created for its owner alone and refused if anybody else may read it; no ``repr``, error, log or argument shows it.
A server accepts the peers whose public keys are in its directory: libzmq asks it at each handshake (ZAP).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from trackside._platform import CREATE, READ, SYSTEM, user_id
from trackside.events import ConfigError

# zmq is loaded when it is first used: `trackside.job` imports this module, and importing trackside must not load zmq.
# `_connection` imports it from here.
if TYPE_CHECKING:
    import zmq
    from zmq.utils import z85
else:

    class _WhenUsed:
        def __init__(self, load: Any) -> None:
            self._load = load

        def __getattr__(self, name: str) -> Any:
            return getattr(self._load(), name)

    def _load_zmq() -> Any:
        import zmq  # noqa: PLC0415  not before it is used

        return zmq

    def _load_z85() -> Any:
        from zmq.utils import z85  # noqa: PLC0415

        return z85

    zmq = _WhenUsed(_load_zmq)
    z85 = _WhenUsed(_load_z85)

__all__ = ["z85", "zmq"]

SERVER, RANK, VIEWER, CONTROL = "server", "rank", "viewer", "control"
ROLES: Final = (SERVER, RANK, VIEWER, CONTROL)
ACCEPTED_GENERATIONS: Final = 2
"""The number of a role's newest keys that are accepted: a key can be replaced while the one before is in use."""

_NAME: Final = re.compile(r"(server|rank|viewer|control)\.([1-9][0-9]{0,5})\.(secret|public)")
_KEY: Final = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_MAX_KEY_BYTES: Final = 64
_PRIVATE: Final = 0o700
_OTHERS: Final = 0o077
_WRITABLE: Final = 0o022


@attrs.frozen
class KeyPair:
    """A key pair of this process. Its secret is shown nowhere."""

    role: str
    generation: int
    public: bytes
    """In Z85: 40 characters, like the secret."""
    secret: bytes = attrs.field(repr=False)


@attrs.frozen
class ClientKeys:
    """The keys of a client: a key of its own and the server's public one, so that neither end can be impersonated."""

    own: KeyPair
    server: bytes


def new_keys(directory: str | os.PathLike[str], roles: Iterable[str] = ROLES) -> list[Path]:
    """
    Make a new generation of keys for each of *roles*, and return the files written.

    Args:
        directory: Made for this user alone if it does not exist; refused if others have access to it.
        roles: ``server``, ``rank``, ``viewer`` and ``control``. The two newest keys of each role are accepted, so any
            older key is refused from now on.

    Raises:
        ConfigError: A role is unknown, or the directory is not this user's alone.
        OSError: It cannot be written.
    """
    where = Path(directory)
    for role in roles:
        if role not in ROLES:
            raise ConfigError("role", role, f"give one of {', '.join(ROLES)}")
    where.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    check_private(where, "keys")
    written: list[Path] = []
    for role in roles:
        generation = max(_generations(where, role, "secret", "public"), default=0) + 1
        public, secret = zmq.curve_keypair()
        # The secret first: a public key without its secret would be accepted but useless.
        for kind, key, mode in (("secret", secret, 0o600), ("public", public, 0o644)):
            path = where / _file_name(role, generation, kind)
            fd = os.open(path, CREATE, mode)
            try:
                os.write(fd, key + b"\n")
            finally:
                os.close(fd)
            written.append(path)
    return written


def load_client_keys(directory: str | os.PathLike[str], *roles: str) -> ClientKeys:
    """
    Load the newest key of the first of *roles* that has one, and the newest public key of the server.

    Raises:
        ConfigError: A key is missing, malformed, or a secret that others can read.
    """
    where = Path(directory)
    _check_unwritable(where)
    generations = _generations(where, SERVER, "public")
    if not generations:
        raise ConfigError("keys", str(where), f"copy {SERVER}.1.public there, the public key of whom to connect to")
    server = _read(where / _file_name(SERVER, max(generations), "public"), is_secret=False)
    return ClientKeys(_load_pair(where, roles), server)


def load_server_key(directory: str | os.PathLike[str]) -> KeyPair:
    """
    Load the newest key of the server itself.

    Raises:
        ConfigError: It is missing, malformed, or others can read it.
    """
    _check_unwritable(Path(directory))
    return _load_pair(Path(directory), (SERVER,))


def load_accepted(directory: str | os.PathLike[str]) -> dict[bytes, str]:
    """
    Return the public keys that a server accepts, the two newest of each role, and the role of each.

    Raises:
        ConfigError: One of them is malformed, or the directory cannot be read.
    """
    where = Path(directory)
    _check_unwritable(where)
    accepted: dict[bytes, str] = {}
    for role in (RANK, VIEWER, CONTROL):
        for generation in sorted(_generations(where, role, "public"))[-ACCEPTED_GENERATIONS:]:
            accepted[_read(where / _file_name(role, generation, "public"), is_secret=False)] = role
    return accepted


def _check_unwritable(directory: Path) -> None:
    """
    Raise if anybody but this user and root can put files into *directory*: a key put there would be accepted.

    Raises:
        ConfigError: Somebody else can, or the directory cannot be read.
    """
    try:
        found = directory.stat()
    except OSError as error:
        raise ConfigError(
            "keys", str(directory), f"name a directory that `trackside keys new` made: {error.strerror}"
        ) from error
    if found.st_uid not in (0, _user_id()):
        raise ConfigError("keys", str(directory), "it belongs to another user; name a directory of your own")
    if stat.S_IMODE(found.st_mode) & _WRITABLE:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError("keys", str(directory), f"its mode is {mode:04o}, so others can add keys; chmod 700 it")


def _user_id() -> int:
    """
    Return the user that this process acts as.

    Raises:
        ConfigError: Files on this system have no owner.
    """
    found = user_id()
    if found is None:
        raise ConfigError("keys", SYSTEM, "keys need a system whose files have owners, as Linux and macOS")
    return found


def check_private(directory: Path, field: str) -> None:
    """
    Raise unless *directory* belongs to this user and no other user has access to it.

    Raises:
        ConfigError: It belongs to another user, or others have access to it.
    """
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(field, str(directory), "name a directory, and no symbolic link to one")
    if found.st_uid != _user_id():
        raise ConfigError(field, str(directory), "it belongs to another user; name a directory of your own")
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(
            field, str(directory), f"its mode is {mode:04o}, so others have access; chmod 700 it or name another"
        )


def _file_name(role: str, generation: int, kind: str) -> str:
    return f"{role}.{generation}.{kind}"


def _generations(where: Path, role: str, *kinds: str) -> set[int]:
    try:
        names = os.listdir(where)  # noqa: PTH208  names alone are wanted
    except OSError as error:
        raise ConfigError(
            "keys", str(where), f"name a directory that `trackside keys new` made: {error.strerror}"
        ) from error
    found = (_NAME.fullmatch(name) for name in names)
    return {int(match[2]) for match in found if match and match[1] == role and match[3] in kinds}


def _load_pair(where: Path, roles: Iterable[str]) -> KeyPair:
    for role in roles:
        generations = _generations(where, role, "secret")
        if generations:
            newest = max(generations)
            secret = _read(where / _file_name(role, newest, "secret"), is_secret=True)
            return KeyPair(role, newest, zmq.curve_public(secret), secret)
    wanted = " or ".join(f"{role}.1.secret" for role in roles)
    raise ConfigError("keys", str(where), f"it holds no {wanted}; make it with `trackside keys new`, or copy it there")


def _read(path: Path, *, is_secret: bool) -> bytes:
    """Read one key. No error shows any part of it."""
    try:
        fd = os.open(path, READ)
    except OSError as error:
        raise ConfigError("keys", str(path), f"see that it can be read: {error.strerror}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError("keys", str(path), "it is no regular file")
        is_foreign = found.st_uid not in (0, _user_id())
        if is_secret and (stat.S_IMODE(found.st_mode) & _OTHERS or is_foreign):
            raise ConfigError("keys", str(path), "others can read this secret; chmod 600 it, and renew it if they did")
        if stat.S_IMODE(found.st_mode) & _WRITABLE or is_foreign:
            raise ConfigError("keys", str(path), "others can replace this key by theirs; look at it, and chmod 644 it")
        text = os.read(fd, _MAX_KEY_BYTES).strip()
    finally:
        os.close(fd)
    if not _KEY.fullmatch(text):
        raise ConfigError("keys", str(path), "it holds no key; copy it again, or make a new one")
    return text


DOMAIN: Final = b"trackside"
_ZAP: Final = "inproc://zeromq.zap.01"
_REQUEST_PARTS: Final = 7
_READ_AGAIN_S: Final = 1.0
_HANDSHAKES_AT_ONCE: Final = 256

_logger = logging.getLogger("trackside")


class AllowList:
    """
    The public keys in a directory, and the role of each.

    The directory is read again when it has changed, so a new generation is accepted, and a removed key refused, without
    a restart. While it cannot be read, the last list applies.

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


class Authenticator:
    """
    Decides for libzmq, at each handshake with a socket of this context, whether to accept the peer.

    It has no thread: the loop that polls the sockets polls `socket` too, and calls `answer` when it can be read. Until
    then a handshake waits. Once this is closed, the sockets that `secure_server` set up refuse every peer.

    Args:
        context: The context of the sockets.
        allowed: The keys that are accepted.
        roles: The roles that are accepted.
    """

    def __init__(self, context: zmq.Context[Any], allowed: AllowList, roles: Collection[str] = ROLES) -> None:
        self.accepted: Counter[str] = Counter()
        """Handshakes that succeeded, by role."""
        self.refused = 0
        """Handshakes with a key that is not on the list, or is of another role."""
        self._allowed = allowed
        self._roles = roles
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP)

    def answer(self) -> None:
        """Answer the handshakes that wait, at most 256."""
        for _ in range(_HANDSHAKES_AT_ONCE):
            try:
                request = self.socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            with contextlib.suppress(zmq.Again):
                self.socket.send_multipart(self._decide(request), zmq.DONTWAIT)

    def close(self) -> None:
        """Answer no more; every later handshake is refused."""
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
        if role is None or role not in self._roles:
            return b""
        self.accepted[role] += 1
        return f"{role}:{fingerprint(public)}".encode()


def fingerprint(public: bytes) -> str:
    """Return a short name of a *public* key, for people."""
    return hashlib.sha256(public).hexdigest()[:8]


def user_of(part: zmq.Frame) -> tuple[str, str]:
    """
    Return the role and fingerprint of the sender of a message *part*, as its connection proved them.

    Both are empty where no keys are in use.
    """
    try:
        role, _, name = str(part.get("User-Id")).partition(":")
    except zmq.ZMQError:
        return "", ""
    return role, name
