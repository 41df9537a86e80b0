"""An operator of NATS, an account and its users, as `nsc` makes them: for a server's configuration and for users."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import nkeys

_NO_LIMIT = dict.fromkeys(
    (
        *("subs", "data", "payload", "imports", "exports", "conn", "leaf"),
        *("mem_storage", "disk_storage", "streams", "consumer"),
    ),
    -1,
)


class Key:
    """A pair of keys; *kind* is that of its prefix, as of an operator, an account or a user."""

    def __init__(self, kind: int) -> None:
        self.seed: str = nkeys.encode_seed(os.urandom(32), kind).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public: str = self._pair.public_key.decode()

    def signed(self, name: str, subject: str, kind: str, **claims: Any) -> str:
        """Return a token in which this key says of *subject* what its *claims* are."""
        payload = {
            "iat": 0,
            "iss": self.public,
            "jti": name,
            "name": name,
            "sub": subject,
            "nats": {**claims, "type": kind, "version": 2},
        }
        content = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(payload)}"
        return f"{content}.{_in_base64(self._pair.sign(content.encode()))}"


class Accounts:
    """An operator with one account, which may use JetStream, beside the one that the server needs for itself."""

    def __init__(self) -> None:
        self._operator = Key(nkeys.PREFIX_BYTE_OPERATOR)
        self._account, self._system = Key(nkeys.PREFIX_BYTE_ACCOUNT), Key(nkeys.PREFIX_BYTE_ACCOUNT)

    def configuration(self) -> str:
        """Return the lines of a server's configuration by which it knows the account."""
        operator = self._operator.signed("operator", self._operator.public, "operator")
        limits = {**_NO_LIMIT, "wildcards": True}
        account = self._operator.signed("account", self._account.public, "account", limits=limits)
        system = self._operator.signed("system", self._system.public, "account", limits=dict.fromkeys(_NO_LIMIT, 0))
        return (
            f"operator: {operator}\nsystem_account: {self._system.public}\nresolver: MEMORY\n"
            f"resolver_preload: {{\n  {self._account.public}: {account}\n  {self._system.public}: {system}\n}}\n"
        )

    def credentials(self, name: str) -> tuple[str, str]:
        """Return what a file of credentials of a new user holds, who hears only its own answers; and its public key."""
        user = Key(nkeys.PREFIX_BYTE_USER)
        hears = [f"_INBOX.{user.public}.>", "runs-control.*.*"]
        token = self._account.signed(
            name, user.public, "user", sub={"allow": hears}, pub={}, subs=-1, data=-1, payload=-1
        )
        blocks = (("NATS USER JWT", token), ("USER NKEY SEED", user.seed))
        text = "".join(f"-----BEGIN {title}-----\n{content}\n------END {title}------\n\n" for title, content in blocks)
        return text, user.public


def _encoded(value: object) -> str:
    return _in_base64(json.dumps(value).encode())


def _in_base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
