"""The answers of `trackside ctl`; `tests/handlers/zeromq/test_control.py` has the verbs."""

from __future__ import annotations

import pytest

from trackside.cli import _ctl
from trackside.handlers.zeromq import Outcome


@pytest.mark.parametrize(("ranks", "code", "said"), [("1", 0, ""), ("1,5-6", 1, "there is no process of rank(s) 5-6")])
def test_unknown_ranks(command, monkeypatch, ranks, code, said):
    """Ranks that nobody has are named, and the exit code is 1."""
    passed_on = Outcome("collector", done=True, values={"expected": 1})
    answer = Outcome("source", done=True, values={"rank": 1, "paused": True})
    monkeypatch.setattr(_ctl, "command", lambda *_, **__: [passed_on, answer])

    outcome = command("ctl", "ipc:///somewhere", "pause", "--ranks", ranks)

    assert (outcome.code, outcome.err.removeprefix("trackside ctl: ").rstrip()) == (code, said)


def test_tcp_without_keys(command):
    """A verb over TCP without keys is refused with the one remedy that there is."""
    outcome = command("ctl", "tcp://127.0.0.1:5", "status")

    assert (outcome.code, "insecure" in outcome.err) == (2, False)
    assert "verbs need keys" in outcome.err
