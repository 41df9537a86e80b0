"""The session state machine, cell by cell."""

from __future__ import annotations

import attrs
import pytest

from trackside.events import DecodeError
from trackside.handlers.zeromq._protocol import (
    PROTOCOL_VERSION,
    SOURCE_END,
    VIEWER_END,
    Bye,
    Hello,
    Message,
    Ping,
    Refused,
    Reset,
    Subscribe,
    Welcome,
    decode,
    encode,
)
from trackside.handlers.zeromq._session import Action, Role, Sent, Sessions, State, action_for

# Copied from docs/remote-protocol.md, a column for each role and state, so that an error in the table shows.
# m meet, a ask to greet, g greet again, r reply, n note refusal, p part, d deliver, - ignore
CELLS = """
                SERVER      PRODUCER    RECEIVER    VIEWER
                unm met ov  unm met ov  unm met ov  unm met ov
    Hello       m   m   -   -   -   -   m   m   -   -   -   -
    Welcome     -   -   -   m   -   -   -   -   -   m   -   -
    Reset       -   -   -   g   g   -   -   -   -   g   g   -
    Refused     -   -   -   n   n   -   -   n   -   n   n   -
    Bye         -   p   -   -   p   -   -   p   -   p   p   -
    Ping        a   r   -   -   r   -   a   r   -   -   r   -
    Pong        -   -   -   -   -   -   -   d   -   -   d   -
    Beat        a   -   -   -   -   -   a   d   -   -   d   -
    Subscribe   a   d   -   -   d   -   a   -   -   -   -   -
    Subscribed  a   -   -   -   -   -   a   d   -   -   d   -
    Fetch       a   d   -   -   d   -   a   -   -   -   -   -
    Chunk       a   -   -   -   -   -   a   d   -   -   d   -
    FrameEntry  a   -   -   -   -   -   a   d   -   -   d   -
    LossEntry   a   -   -   -   -   -   a   d   -   -   d   -
    Skipped     a   -   -   -   -   -   a   d   -   -   d   -
    Ack         a   d   -   -   d   -   a   -   -   -   -   -
    ReplayRequest a   d   -   -   d   -   a   -   -   -   -   -
    Verb        a   d   -   -   d   -   a   -   -   -   -   -
    Result      a   -   -   -   -   -   a   d   -   -   d   -
"""
ACTIONS = {
    "m": Action.MEET,
    "a": Action.ASK_TO_GREET,
    "g": Action.GREET_AGAIN,
    "r": Action.REPLY,
    "n": Action.NOTE_REFUSAL,
    "p": Action.PART,
    "d": Action.DELIVER,
    "-": Action.IGNORE,
}
KINDS = {cls.__name__: cls for cls in Message.__subclasses__()}
COLUMNS = [(role, state) for role in Role for state in State]
ROWS = [line.split() for line in CELLS.splitlines() if line.split() and line.split()[0] in KINDS]
ALL_CELLS = [
    (role, state, KINDS[row[0]], ACTIONS[letter])
    for row in ROWS
    for (role, state), letter in zip(COLUMNS, row[1:], strict=True)
]
VALUES = {
    "Whole": 1,
    "Number": 1,
    "Text": "x",
    "Flag": False,
    "Body": b"",
    "Texts": ["x"],
    "WireRule": None,
    "Table": {},
}
EXAMPLES = [cls(*(VALUES[field.type] for field in attrs.fields(cls))) for cls in KINDS.values()]


class TestTable:
    def test_is_whole(self):
        """Every kind of message has a cell for each role and state: 19 times 12."""
        assert {row[0] for row in ROWS} == set(KINDS)
        assert len(ALL_CELLS) == 19 * 12

    @pytest.mark.parametrize(("role", "state", "kind", "action"), ALL_CELLS)
    def test_cell(self, role, state, kind, action):
        """Each cell equals the one in the protocol's document."""
        assert action_for(role, state, kind) is action


class Record:
    """A record that an owner keeps of a peer."""

    def __init__(self, address, name, user):
        self.address, self.id, self.user = address, name, user


class End:
    """An end of some role, and the messages it sent."""

    def __init__(self, role):
        self.sent = []
        self.sessions = Sessions(role, self._send, own_id="here")

    def _send(self, address, parts):
        self.sent.append(decode(parts))
        return Sent.QUEUED

    def hear(self, message, user="", address=b"a"):
        """Receive *message*; return the action, and the answers."""
        before = len(self.sent)
        action, heard = self.sessions.receive(address, encode(message), user, 5)
        if action is Action.MEET:
            self.sessions.welcome(Record(address, heard.id, user))
        return action, self.sent[before:]

    def greet(self, now_s):
        """Let time pass; return the messages sent."""
        before = len(self.sent)
        self.sessions.tick(now_s)
        return [type(message) for message in self.sent[before:]]


OTHER_END = {Role.SERVER: VIEWER_END, Role.PRODUCER: VIEWER_END, Role.RECEIVER: SOURCE_END, Role.VIEWER: SOURCE_END}


class TestRights:
    @pytest.mark.parametrize("kind", sorted(KINDS))
    @pytest.mark.parametrize(
        ("role", "user", "is_admitted"),
        [
            (Role.SERVER, "viewer:0", True),
            (Role.SERVER, "control:0", True),
            (Role.SERVER, "rank:0", False),
            (Role.SERVER, "server:0", False),
            (Role.RECEIVER, "rank:0", True),
            (Role.RECEIVER, "viewer:0", False),
            (Role.RECEIVER, "control:0", False),
        ],
    )
    def test_of_every_message(self, kind, role, user, is_admitted):
        """Any message with a key of the wrong role, met or not, is refused, and nothing of it reaches the owner."""
        end = End(role)
        end.sessions.welcome(Record(b"met", "m", user))
        end.sent.clear()
        message = next(message for message in EXAMPLES if type(message) is KINDS[kind])

        for address in (b"a", b"met"):
            action, answers = end.hear(message, user, address)
            if not is_admitted:
                assert (action, [answer.code for answer in answers]) == (Action.IGNORE, ["forbidden"])
            else:
                assert not any(isinstance(answer, Refused) and answer.code == "forbidden" for answer in answers)


class TestGreeting:
    @pytest.mark.parametrize("role", [Role.PRODUCER, Role.VIEWER])
    def test_is_repeated_until_it_is_answered(self, role):
        """An end that connects greets once a second, no more once it was answered, and at once after a reset."""
        end = End(role)
        said = [end.greet(0.1 * tick) for tick in range(25)]
        assert [number for number, kinds in enumerate(said) if kinds] == [0, 10, 20]

        end.hear(Welcome(PROTOCOL_VERSION, OTHER_END[role], "o", ""), address=b"")
        assert [end.greet(10.0 + tick) for tick in range(5)] == [[]] * 5

        end.hear(Reset(), address=b"")
        assert end.greet(15.1) == [Hello]

    @pytest.mark.parametrize("role", [Role.SERVER, Role.RECEIVER])
    def test_is_answered(self, role):
        """An end that others connect to answers a greeting, again and again, and never greets."""
        end = End(role)
        for _ in range(2):
            _, (welcome,) = end.hear(Hello(PROTOCOL_VERSION, OTHER_END[role], "o", ""))
            assert (type(welcome), welcome.end, welcome.id) == (Welcome, role.end, "here")
        assert end.greet(100.0) == []

    @pytest.mark.parametrize("role", list(Role))
    def test_of_another_version_or_kind(self, role):
        """A greeting of another version, or of an end of the same kind, is refused; the end that connected notes it."""
        for version, side, code in ((9, OTHER_END[role], "version"), (PROTOCOL_VERSION, role.end, "unsupported")):
            end = End(role)
            kind = Welcome if role.connects else Hello
            action, answers = end.hear(kind(version, side, "o", ""), address=b"" if role.connects else b"a")
            assert end.sessions.peers == {}
            if role.connects:
                assert (action, answers) == (Action.NOTE_REFUSAL, [])
            else:
                assert (action, [answer.code for answer in answers]) == (Action.IGNORE, [code])

    def test_refused_viewer_gives_up(self):
        """A viewer that was refused is over, unless the other end was merely busy; a job greets again for ever."""
        for role, code, is_over in ((Role.VIEWER, "forbidden", True), (Role.VIEWER, "busy", False)):
            end = End(role)
            end.hear(Refused(0, code, ""), address=b"")
            assert (end.sessions.state_of(b"") is State.OVER) is is_over
        producer = End(Role.PRODUCER)
        producer.hear(Refused(0, "forbidden", ""), address=b"")
        assert producer.greet(10.0) == [Hello]

    def test_of_a_job_whose_collector_left(self):
        """A job greets again after its collector said goodbye; a viewer does not."""
        for role, said in ((Role.PRODUCER, [Hello]), (Role.VIEWER, [])):
            end = End(role)
            end.hear(Welcome(PROTOCOL_VERSION, OTHER_END[role], "o", ""), address=b"")
            end.hear(Bye("closed"), address=b"")
            assert end.greet(10.0) == said


class TestAnswers:
    def test_ping(self):
        """A ping is answered with the time at which it came."""
        end = End(Role.SERVER)
        end.hear(Hello(PROTOCOL_VERSION, VIEWER_END, "o", ""))
        _, (pong,) = end.hear(Ping(42))
        assert (pong.sent_ns, pong.received_ns) == (42, 5)

    def test_stranger(self):
        """A stranger that sends a request is asked to greet."""
        assert End(Role.SERVER).hear(Ping(1)) == (Action.ASK_TO_GREET, [Reset()])

    def test_malformed(self):
        """Data that is no message is a decoding error."""
        with pytest.raises(DecodeError):
            End(Role.SERVER).sessions.receive(b"a", [b"\xc1"], "", 0)

    def test_that_cannot_be_encoded(self):
        """A message that is too large is counted, and nothing is raised."""
        end = End(Role.SERVER)
        assert end.sessions.post(b"a", Subscribe(1, ["x" * 70_000], 1, None, [], "", 0, 1)) is Sent.INVALID
        assert end.sessions.counts["failed"] == 1
