from __future__ import annotations

import pytest

from framing import frame_of
from trackside.events import Source, SourceStarted
from trackside.handlers.zeromq._collector import CollectedStreams
from trackside.handlers.zeromq._control import VerbForwarder
from trackside.handlers.zeromq._protocol import (
    PROTOCOL_VERSION,
    SOURCE_END,
    FrameEntry,
    Hello,
    Refused,
    Result,
    Subscribe,
    Subscribed,
    Verb,
    decode,
    encode,
)
from trackside.handlers.zeromq._receiver import Receiver, SourceRegistry
from trackside.handlers.zeromq._server import StreamServer
from trackside.handlers.zeromq._session import Sent

VIEWER = b"viewer"
COLLECTOR = Source.detect({}, run_id="collectors", role="collector")


class Ranks:
    """The inside of a collector between simulated ranks and one viewer, on a simulated clock."""

    def __init__(self, count, **source):
        self.now_s = 0.0
        self.sources = [Source.detect({}, run_id="run", rank=rank, **source) for rank in range(count)]
        self.addresses = [b"rank %d" % rank for rank in range(count)]
        self.full = set()
        self.verbs = {}
        self.subscriptions = {}
        self.answers = []
        self.streams = CollectedStreams(COLLECTOR, [], None, SourceRegistry(), monotonic_s=lambda: self.now_s)
        self.receiver = Receiver(
            self.streams,
            self._send,
            on_result=lambda producer, message: self.forwarder.on_result(producer, message),
            monotonic_s=lambda: self.now_s,
        )
        self.forwarder = VerbForwarder(
            self.receiver,
            self.streams.registry,
            answer=lambda address, result: self.answers.append(result),
            publish=self.streams.publish,
            source_id=COLLECTOR.id,
        )
        for rank in range(count):
            self.join(rank)

    def _send(self, address, parts):
        message = decode(parts)
        if address in self.full and isinstance(message, Verb):
            return Sent.FULL
        if isinstance(message, Verb):
            self.verbs[address] = message
        elif isinstance(message, Subscribe):
            self.subscriptions[address] = message
        return Sent.QUEUED

    def say(self, rank, message):
        """Let *rank* send *message*."""
        self.receiver.receive([(self.addresses[rank], encode(message), "")])

    def greet(self, rank):
        """Let *rank* greet and be subscribed to."""
        self.say(rank, Hello(PROTOCOL_VERSION, SOURCE_END, f"end of rank {rank}", ""))
        asked = self.subscriptions[self.addresses[rank]]
        self.say(rank, Subscribed(asked.request, f"stream {rank}", 0, 0, False, 1, 0, 0))

    def join(self, rank):
        """Let *rank* greet and send its first event."""
        self.greet(rank)
        source = self.sources[rank]
        frame = frame_of(source.id, [SourceStarted(identity=source.to_wire(), span_id=0, step=-1)])
        self.say(rank, FrameEntry(f"stream {rank}", 0, 0, 1, frame))

    def ask(self, *, targets=(), within_ms=5000):
        """Let the viewer ask for a pause."""
        verb = Verb(7, "pause", list(targets), {}, within_ms)
        self.forwarder.pass_on(VIEWER, verb, "somebody", self.now_s, {})

    def reply(self, rank):
        """Let *rank* answer the verb that it was sent."""
        number = self.verbs[self.addresses[rank]].request
        self.say(rank, Result(number, self.sources[rank].id, done=True, values={"rank": rank}))

    def outcomes(self):
        """Return by rank whether the verb is done, and the error; None before the viewer got any result of it."""
        return {
            result.values["rank"]: (result.done, result.values.get("error", ""))
            for result in self.answers
            if "rank" in result.values
        }

    def wait(self, seconds):
        """Let time pass."""
        self.now_s += seconds
        self.streams.tick(self.receiver.producers.values())
        self.forwarder.tick(self.now_s)


class TestEveryRankHasAnOutcome:
    def test_rank_that_is_heard_late(self):
        """A rank that counts as silent, but is connected, is asked like every other."""
        ranks = Ranks(3)
        ranks.wait(3.5)
        assert ranks.streams.registry.totals()["silent"] == 3

        ranks.ask()
        for rank in range(3):
            ranks.reply(rank)

        assert ranks.outcomes() == {0: (True, ""), 1: (True, ""), 2: (True, "")}

    def test_rank_with_a_new_connection(self):
        """
        A rank that has reconnected and has sent no event since is asked over its new connection.
        """
        ranks = Ranks(2)
        ranks.addresses[1] = b"another address"
        ranks.greet(1)

        ranks.ask()
        for rank in range(2):
            ranks.reply(rank)

        assert ranks.outcomes() == {0: (True, ""), 1: (True, "")}

    def test_rank_that_reconnects_before_it_answers(self):
        """
        A result that comes over another connection than the verb went out by is the rank's.
        """
        ranks = Ranks(1)
        ranks.ask()
        number = ranks.verbs[ranks.addresses[0]].request
        ranks.addresses[0] = b"another address"
        ranks.greet(0)
        ranks.say(0, Result(number, ranks.sources[0].id, done=True, values={"rank": 0}))

        assert ranks.outcomes() == {0: (True, "")}

    def test_full_connection(self):
        """A rank to which nothing can be sent now has failed at once, and is reported as failed."""
        ranks = Ranks(2)
        ranks.full.add(ranks.addresses[1])

        ranks.ask()
        ranks.reply(0)

        assert ranks.outcomes() == {0: (True, ""), 1: (False, "it is not connected; it was last heard 0 s ago")}

    def test_rank_that_never_answers(self):
        """A rank that has not answered when four fifths of the requester's time have passed is reported as failed."""
        ranks = Ranks(2)
        ranks.ask(within_ms=5000)
        ranks.reply(0)
        ranks.wait(3.9)
        assert sorted(ranks.outcomes()) == [0]
        ranks.wait(0.2)

        assert ranks.outcomes() == {0: (True, ""), 1: (False, "no result in time; it may have been done")}

    def test_rank_that_answers_too_late(self):
        """Each rank has one outcome: a result after the reported failure changes nothing."""
        ranks = Ranks(1)
        ranks.ask(within_ms=1000)
        ranks.wait(1.0)
        ranks.reply(0)

        assert [result.done for result in ranks.answers if "rank" in result.values] == [False]

    def test_rank_that_refuses(self):
        """A rank that has no room for one more verb has failed, with its own message."""
        ranks = Ranks(2)
        ranks.ask()
        ranks.say(0, Refused(ranks.verbs[ranks.addresses[0]].request, "busy", "more than 2 verbs a second"))
        ranks.reply(1)

        assert ranks.outcomes() == {0: (False, "more than 2 verbs a second"), 1: (True, "")}

    def test_another_rank_cannot_answer(self):
        """A result for a source that is not behind its connection is not passed on."""
        ranks = Ranks(2)
        ranks.ask()
        number = ranks.verbs[ranks.addresses[0]].request
        ranks.say(1, Result(number, ranks.sources[0].id, done=True, values={"rank": 0}))

        assert ranks.outcomes() == {}

    @pytest.mark.parametrize("silent_s", [30.0, 90.0])
    def test_rank_that_is_gone(self, silent_s):
        """
        A rank that fell silent has failed; after a minute it counts as dead, and is asked only if it is named.
        """
        ranks = Ranks(1)
        ranks.receiver.producers.clear()
        ranks.wait(silent_s)
        ranks.ask()
        expected = {0: (False, f"it is not connected; it was last heard {silent_s:.0f} s ago")}
        assert ranks.outcomes() == (expected if silent_s == 30.0 else {})

        ranks.ask(targets=["rank:0"])

        assert ranks.outcomes() == expected

    def test_as_many_results_as_were_announced(self):
        """The collector's own answer comes first, with the number of sources that answer or are reported as failed."""
        ranks = Ranks(5)
        ranks.full.add(ranks.addresses[2])
        ranks.ask()
        for rank in (0, 1, 3):
            ranks.reply(rank)
        ranks.wait(5.0)

        assert ranks.answers[0].values == {"expected": 5}
        assert len(ranks.answers) == 6


class Viewers:
    """A source end whose connection accepts a number of messages, and then none until there is room again."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.sent = []
        self.server = StreamServer(self, self._send, on_verb=lambda address, verb, user: None)
        self.server.receive(VIEWER, encode(Hello(PROTOCOL_VERSION, "viewer", "v", "")), 0.0, 0)

    def _send(self, address, parts):
        if len(self.sent) >= self.capacity:
            return Sent.FULL
        self.sent.append(decode(parts))
        return Sent.QUEUED


class TestAnswers:
    def test_wait_for_room(self):
        """
        A result for which there is no room now is sent when there is, in order.
        """
        viewers = Viewers(capacity=3)
        for number in range(6):
            viewers.server.answer(VIEWER, Result(number, "source", done=True, values={}))
        viewers.server.pump()
        assert len(viewers.sent) == 3

        viewers.capacity = 100
        viewers.server.pump()

        assert [message.request for message in viewers.sent if isinstance(message, Result)] == [0, 1, 2, 3, 4, 5]

    def test_too_large(self):
        """
        A result that is larger than a message may be is replaced by one that says so.
        """
        viewers = Viewers(capacity=100)
        viewers.server.answer(VIEWER, Result(1, "source", done=True, values={"rank": 3, "x": "y" * 70_000}))
        viewers.server.pump()

        (result,) = [message for message in viewers.sent if isinstance(message, Result)]
        assert (result.done, result.values["rank"]) == (False, 3)
        assert "cannot be sent" in result.values["error"]
