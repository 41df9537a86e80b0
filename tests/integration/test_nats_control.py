"""Verbs over NATS, and what its permissions keep each kind of user from, against the real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import attrs
import pytest

from trackside.bus import Bus
from trackside.cli import main
from trackside.events import ControlUsed, IterationEnded, Source
from trackside.handlers import replay
from trackside.handlers.zeromq import Verb, command
from trackside.handlers.zeromq._protocol import encode
from trackside.job._remote_access import Remote, RemoteAccess

nats = pytest.importorskip("nats")


from trackside.handlers.nats import NatsSink  # noqa: E402
from trackside.handlers.nats._stream import VERBS_PER_S, _VerbListener, create_stream  # noqa: E402

pytestmark = pytest.mark.integration


def attempt(address, use):
    """Return what the server refuses while a plain client with the user of *address* does what *use* says."""
    refused = []

    async def run():
        async def note(error):
            refused.append(str(error).lower())

        client = await nats.connect(address.rpartition("/")[0], error_cb=note)
        await use(client)
        for _ in range(3):
            await client.flush()  # the client sends the first before the message
        await client.close()

    asyncio.run(run())
    assert all("permissions violation" in line for line in refused)
    return refused


def may_publish(address, subject):
    return not attempt(address, lambda client: client.publish(subject, b""))


def may_subscribe(address, subject):
    return not attempt(address, lambda client: client.subscribe(subject))


JS = "$JS.API"
MAY_PUBLISH = {
    "rank": {"acme.run.0.x", f"{JS}.STREAM.INFO.acme"},
    "collector": {
        "acme.run.collector.x",
        f"{JS}.STREAM.INFO.acme",
        f"{JS}.CONSUMER.CREATE.acme",
        f"{JS}.STREAM.MSG.GET.KV_acme-collect",
        "$KV.acme-collect.x",
        "$O.acme-collect.x",
    },
    "viewer": {f"{JS}.STREAM.INFO.acme", f"{JS}.CONSUMER.CREATE.acme", f"{JS}.STREAM.MSG.GET.KV_acme-collect"},
    "control": {f"{JS}.STREAM.INFO.acme", f"{JS}.CONSUMER.CREATE.acme", "acme-control.run.control"},
}
"""Of the subjects that any of them may publish to, or that nobody may, those of each user."""
FOR_NOBODY = {
    "acme-control.run.rank",
    "acme-control.run.viewer",
    "acme-control.run.other",
    "other.run.0.x",
    f"{JS}.STREAM.DELETE.acme",
    f"{JS}.STREAM.PURGE.acme",
    f"{JS}.STREAM.UPDATE.acme",
}
MAY_SUBSCRIBE = {
    "rank": {"_INBOX.rank.>", "acme-control.*.*"},
    "collector": {"_INBOX.collector.>"},
    "viewer": {"_INBOX.viewer.>"},
    "control": {"_INBOX.control.>"},
}


@pytest.mark.parametrize("user", MAY_PUBLISH)
class TestPermissions:
    """The users of examples/deploy/nats-server.conf."""

    def test_publish(self, nats_addresses, user):
        """A user may publish to its own subjects, and to those of no other user."""
        subjects = FOR_NOBODY.union(*MAY_PUBLISH.values())
        assert {one for one in subjects if may_publish(nats_addresses[user], one)} == MAY_PUBLISH[user]

    def test_subscribe(self, nats_addresses, user):
        """A user may hear the answers to itself, ranks also the verbs; nobody the stream, or what is for others."""
        subjects = {">", "acme.>", "_INBOX.>", "$JS.>"}.union(*MAY_SUBSCRIBE.values())
        assert {one for one in subjects if may_subscribe(nats_addresses[user], one)} == MAY_SUBSCRIBE[user]


def create(address):
    """Create the stream, as its collector does."""

    async def run():
        client = await nats.connect(address.rpartition("/")[0], inbox_prefix="_INBOX.collector")
        await create_stream(client.jetstream(), "acme")
        await client.close()

    asyncio.run(run())


@contextlib.contextmanager
def running(address, tmp_path, *ranks, run="run"):
    """Run a process's part of a job for each of *ranks*, all of which publish to the stream and listen to verbs."""
    with contextlib.ExitStack() as stack:
        buses = []
        for rank in ranks:
            source = Source.detect({}, run_id=run, rank=rank, world_size=len(ranks))
            bus = stack.enter_context(Bus(source=source))
            remote = RemoteAccess(Remote(collector=address), bus=bus, source=source, directory=tmp_path)
            stack.callback(remote.close, 5.0)
            bus.log(IterationEnded(step=1, duration_ns=1))
            assert bus.flush(20)
            buses.append(bus)
        yield buses


def used(address):
    """Return the uses of verbs that ranks recorded: the verb, by whom, and whether it was done."""
    return {
        (event.source.rank, event.verb, event.by, event.done)
        for event in replay(address)
        if isinstance(event, ControlUsed)
    }


class TestVerbs:
    @pytest.fixture
    def job(self, nats_addresses, tmp_path):
        """Run two ranks of a run, and one of another; return the addresses."""
        create(nats_addresses["collector"])
        with (
            running(nats_addresses["rank"], tmp_path, 0, 1),
            running(nats_addresses["rank"], tmp_path, 0, run="other"),
        ):
            yield nats_addresses

    def test_all_ranks(self, job):
        """Every rank of the run, and no other one, does what the control user asks, and records who asked."""
        outcomes = command(f"{job['control']}/run", "status")
        assert {(outcome.values["rank"], outcome.values["run"], outcome.done) for outcome in outcomes} == {
            (0, "run", True),
            (1, "run", True),
        }
        assert command(f"{job['control']}/run", "flush")[0].done
        assert {entry for entry in used(job["viewer"]) if entry[1] == "status"} == {
            (rank, "status", "nats:control", True) for rank in range(2)
        }

    def test_restriction(self, job):
        """A verb's restriction is in force until another one resumes."""
        run = f"{job['control']}/run"
        paused = []
        for verb in ("pause", "resume"):
            assert command(run, verb)[0].done
            paused.append({outcome.values["paused"] for outcome in command(run, "status")})
        assert paused == [{True}, {False}]

    @pytest.mark.parametrize(("place", "option"), [("run/1", ()), ("run", ("--rank", "1"))])
    def test_one_rank(self, job, capsys, place, option):
        """A rank behind the run, or the option, reaches that rank alone."""
        assert main(["ctl", f"{job['control']}/{place}", "status", "--json", *option]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["rank"] == 1
        assert command(f"{job['control']}/run", "flush")[0].done
        assert {rank for rank, verb, *_ in used(job["viewer"]) if verb == "status"} == {1}

    def test_where_a_loop_runs(self, job):
        """A notebook can ask: its own thread runs an event loop already."""

        async def cell():
            return command(f"{job['control']}/run", "status")

        assert [outcome.done for outcome in asyncio.run(cell())] == [True, True]

    @pytest.mark.parametrize("user", ["viewer", "rank", "collector"])
    def test_without_the_right(self, job, capsys, user):
        """Another user's verb is refused by the server, in one line without a password; nothing is done or recorded."""
        assert main(["ctl", f"{job[user]}/run", "pause"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "trackside ctl: nats://127.0.0.1" in line
        assert f"{user}-secret" not in line
        assert used(job["viewer"]) == set()

    def test_no_answer(self, job):
        """A rank that does not listen has an outcome that says so, one that ended has none."""
        server = job["rank"].rpartition("/")[0]
        with Bus(source=Source.detect({}, run_id="run", rank=2)) as ended:
            ended.subscribe(NatsSink(server, stream="acme"))
        with Bus(source=Source.detect({}, run_id="run", rank=3)) as deaf:
            deaf.subscribe(NatsSink(server, stream="acme"))
            deaf.log(IterationEnded(step=1, duration_ns=1))
            assert deaf.flush(20)
            outcomes = command(f"{job['control']}/run", "status", timeout_s=2.0)
        assert {outcome.values["rank"]: outcome.done for outcome in outcomes} == {0: True, 1: True, 3: False}
        assert "no answer" in next(outcome.values["error"] for outcome in outcomes if not outcome.done)

    def test_through_a_consumer(self, job):
        """A verb whose answer would go elsewhere, as what a stream's consumer delivers, is not carried out."""

        async def use(client):
            await client.publish("acme-control.run.control", encode(Verb(1, "pause", [], {}))[0], reply="acme.run.0.x")

        assert attempt(job["control"], use) == []
        assert command(f"{job['control']}/run", "flush")[0].done
        assert {verb for _, verb, _, _ in used(job["viewer"])} <= {"flush"}

    def test_garbage(self, job):
        """After a hundred messages that are no verbs the ranks answer as before."""

        async def use(client):
            for _ in range(100):
                await client.publish("acme-control.run.control", b"\xc1" * 5_000, reply="_INBOX.control.x")

        assert attempt(job["control"], use) == []
        assert all(outcome.done for outcome in command(f"{job['control']}/run", "status"))

    def test_no_such_run(self, job, capsys):
        """A run of which there is nothing is one line, with exit code 2."""
        assert main(["ctl", f"{job['control']}/elsewhere", "status"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "no process of the run answers" in line


class Heard:
    """A client that hands each message to the one that subscribed."""

    _server_info = {"auth_required": True}

    async def subscribe(self, _subject, cb):
        """Hand messages to *cb*."""
        self.hear = cb


@attrs.frozen
class Request:
    """A message with a request."""

    data: bytes
    subject: str = "acme-control.run.control"
    reply: str = "_INBOX.control.x"


def test_flood():
    """Of a thousand verbs at once the twenty of the limit are carried out, and those that it admits meanwhile."""
    done = []

    async def run():
        client = Heard()
        await _VerbListener(lambda *verb: done.append(verb)).listen(client, "acme-control.run.*")
        began_s = time.monotonic()
        for _ in range(1_000):
            await client.hear(Request(encode(Verb(1, "status", [], {}))[0]))
        return time.monotonic() - began_s

    took_s = asyncio.run(run())
    assert 20 <= len(done) <= 21 + VERBS_PER_S * took_s


class TestServerWithoutUsers:
    def test_refused(self, nats_server, tmp_path):
        """On a server that anybody may ask, a rank refuses, and records it."""
        address = f"{nats_server.url}/acme"
        with running(address, tmp_path, 0) as (bus,):
            (outcome,) = command(f"{address}/run", "pause")
            assert bus.flush(20)
        assert not outcome.done
        assert "a NATS server that has users" in outcome.values["error"]
        assert used(address) == {(0, "pause", "nats:anybody", False)}

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (("nats://127.0.0.1:1/acme",), "give nats://HOST:PORT/STREAM/RUN"),
            (("nats://h/acme/r", "--keys", "k"), "users"),
        ],
    )
    def test_arguments(self, capsys, arguments, line):
        """An address without a run, or with keys, is one line, with exit code 2."""
        assert main(["ctl", arguments[0], "status", *arguments[1:]]) == 2
        (printed,) = capsys.readouterr().err.splitlines()
        assert line in printed
