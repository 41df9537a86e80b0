from __future__ import annotations

import os
import signal
import time

import pytest

from trackside.events import ClockCompared, DecodeError, RankFellSilent, Source, SourceStarted
from trackside.handlers import check_logs
from trackside.handlers.zeromq import attach
from trackside.handlers.zeromq._forwarder import peek
from trackside.handlers.zeromq._receiver import OwnStream
from trackside.wire import fields_of

pytestmark = pytest.mark.once

STEP = "test.step.taken"


@pytest.fixture
def sent(jobs):
    """Give a function that starts a job that sends to an endpoint, with a rank."""
    return lambda endpoint, rank=0: jobs(publish=False, collector=endpoint, insecure=True, rank=rank, models=False)


class TestPeek:
    def test_agrees_with_the_decoder(self):
        """A frame's source and last number are read from its first bytes."""
        frames = []
        stream = OwnStream(Source.detect({}), lambda event, frame, seq: frames.append(frame))
        stream.end("closed")

        assert [peek(frame) for frame in frames] == [(stream.source.id, 0), (stream.source.id, 1)]

    @pytest.mark.parametrize("data", [b"", b"\x97", b"\x97\x01\xa1x\xa1y\xa1z", b"\xc1" * 600, bytes(600)])
    def test_what_is_no_frame(self, data):
        """Other data is a decoding error."""
        with pytest.raises(DecodeError):
            peek(data)


@pytest.mark.integration
class TestTree:
    def test_totals_are_exact(self, collectors, forwarders, sent, tmp_path):
        """
        Through two levels of forwarders every event of every rank arrives once, and none is lost.
        """
        collector = collectors(log=tmp_path)
        rack = forwarders(collector.endpoint)
        nodes = [forwarders(rack.endpoint) for _ in range(2)]
        started = [sent(nodes[rank % 2].endpoint, rank) for rank in range(3)]
        for rank, job in enumerate(started):
            job.log(count=1000 * (rank + 1))
            job.end()
        for job in started:
            assert job.close(timeout_s=60)[1]
        for forwarder in (*nodes, rack):
            assert forwarder.end()
        collector.end()

        report = {one.source.rank: one for one in check_logs(tmp_path).sources if one.source.role == "main"}
        assert {rank: one.by_type[STEP] for rank, one in report.items()} == {0: 1000, 1: 2000, 2: 3000}
        assert [one.missing for one in report.values()] == [0, 0, 0]

    def test_collector_away(self, collectors, forwarders, sent, until, socket_directory):
        """
        While the collector is away the forwarder's ring holds the frames; nothing is lost and nothing comes twice.
        """
        bind = f"ipc://{socket_directory}/collector"
        first = collectors(bind=bind)
        forwarder = forwarders(bind)
        job = sent(forwarder.endpoint)
        job.log(count=100)
        until(lambda: len(first.heard(STEP)) == 100)
        first.end()
        job.log(count=100)

        second = collectors(bind=bind)
        until(lambda: len(second.heard(STEP)) == 200)

        assert [fields_of(event)["number"] for event in second.heard(STEP)] == list(range(200))

    def test_forwarder_restarted(self, collectors, forwarders, sent, until, socket_directory):
        """
        A forwarder that was restarted gets from the ranks the frames that it may have missed; the collector accepts
        each once.
        """
        bind = f"ipc://{socket_directory}/node"
        collector = collectors()
        first = forwarders(collector.endpoint, bind=bind)
        job = sent(bind)
        job.log(count=100)
        until(lambda: len(collector.heard(STEP)) == 100)
        first.end()
        job.log(count=100)

        forwarders(collector.endpoint, bind=bind)
        until(lambda: len(collector.heard(STEP)) == 200)

        assert collector.totals()["lost"] == 0

    def test_closed_again(self, forwarders, socket_directory):
        """A forwarder whose collector never came says that not everything arrived, however often it is closed."""
        forwarder = forwarders(f"ipc://{socket_directory}/nobody")

        assert [forwarder.end(), forwarder.end()] == [False, False]

    def test_silent_rank_is_named_through_it(self, collectors, forwarders, sent, until):
        """
        Of two ranks behind one forwarder the one that is stopped is named, and the quiet one is not.
        """
        collector = collectors(silent_after_s=8.0)
        forwarder = forwarders(collector.endpoint)
        pair = [sent(forwarder.endpoint, rank) for rank in range(2)]
        for job in pair:
            job.log(count=10)
        until(lambda: len(collector.heard(STEP)) == 20)

        os.kill(pair[1].pid, signal.SIGSTOP)
        until(lambda: collector.heard(RankFellSilent))
        time.sleep(1.0)

        assert [event.rank for event in collector.heard(RankFellSilent)] == [1]

    def test_clocks_are_compared_at_each_connection(self, collectors, forwarders, sent, until):
        """
        The forwarder compares its ranks' clocks with its own, and the collector the forwarder's with its own.
        """
        collector = collectors()
        forwarder = forwarders(collector.endpoint)
        sent(forwarder.endpoint).log(count=1)

        until(lambda: len({event.source.id for event in collector.heard(ClockCompared)}) == 2)

        recorded = {event.source.id: event.source_id for event in collector.heard(ClockCompared)}
        assert recorded[collector.streams.own.source.id] == forwarder.streams.own.source.id

    def test_viewers_see_all_ranks(self, collectors, forwarders, sent, until):
        """
        A viewer of the collector sees the ranks behind forwarders and those that connected to it.
        """
        collector = collectors(publish="tcp://127.0.0.1:*")
        forwarder = forwarders(collector.endpoint)
        for rank, endpoint in enumerate((collector.endpoint, forwarder.endpoint)):
            sent(endpoint, rank).log(count=10)
        until(lambda: len(collector.heard(SourceStarted)) == 3)  # two ranks and the forwarder

        with attach(collector.viewer_endpoint, insecure=True) as attachment:
            until(lambda: (attachment.read(0.1), {0, 1} <= {s.rank for s in attachment.sources.values()})[1])
            assert {s.rank for s in attachment.sources.values() if s.role == "main"} == {0, 1}
