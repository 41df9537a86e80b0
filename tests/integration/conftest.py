"""Servers for the tests: real ones where they are installed, and stand-ins that decode what they are sent."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import gzip
import http.server
import json
import math
import operator
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import urllib.parse
import urllib.request
import zlib
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ports import free_port
from trackside.events import IterationEnded
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

WAIT_S = 90.0
COMPARISONS = {"=": operator.eq, ">=": operator.ge, "<=": operator.le, ">": operator.gt}


def program(name: str) -> str:
    """Return the path of a server's program; skip the test if it is not installed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed here; as root, python tools/servers.py {name} installs it")
    return found


@contextlib.contextmanager
def running(
    *command: str | Path, log: Path, answers: Callable[[], bool], within_s: float = WAIT_S
) -> Iterator[subprocess.Popen[bytes]]:
    """
    Run a server in a process group of its own, wait until *answers* returns True, and end all of it afterwards.

    If it ends before, or does not answer in time, the test fails with the last lines of the server's log.
    """

    def answered() -> bool:
        assert child.poll() is None, f"{command[0]} ended with {child.returncode} before it answered"
        with contextlib.suppress(OSError):  # not yet
            return answers()
        return False

    with Path(log).open("ab") as output:
        child = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        try:
            until(answered, within_s, what=f"{command[0]} answers")
        except AssertionError as error:
            said = Path(log).read_text("utf-8", errors="replace").splitlines()[-40:]
            raise AssertionError("\n".join((f"{error}. The last it wrote:", *said))) from None
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.fixture(params=["lightning", "pytorch_lightning"])
def package(request: pytest.FixtureRequest) -> str:
    """Run the test with each of Lightning's packages."""
    return str(request.param)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Return a function that waits until another one returns a true value."""
    return until


@pytest.fixture
def port() -> int:
    """Return a port that nothing listens on."""
    return free_port()


EXTREMES = (math.inf, -math.inf, math.nan, -0.0, 1e308, 5e-324)
"""The numbers that formats treat in different ways."""


@pytest.fixture
def losses() -> list[IterationEnded]:
    """Return an iteration for each extreme number, with the number as its loss and its index as its step."""
    return [IterationEnded(step=step, duration_ns=1, loss=value) for step, value in enumerate(EXTREMES)]


@pytest.fixture
def bits() -> Callable[[Iterable[float]], list[bytes]]:
    """Return a function that turns floats into bits: the signs of zeros count, and NaN equals itself."""
    return lambda values: [struct.pack("<d", value) for value in values]


def has_page(url: str) -> bool:
    """Return True if a server has the page *url*; raise `OSError` if it does not answer."""
    with urllib.request.urlopen(url, timeout=5) as page:
        return bool(page.status == 200)


@pytest.fixture
def running_process() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that runs a server as `running` does, until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda *command, **options: stack.enter_context(running(*command, **options))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Return a function that starts a server and waits until a page of it answers; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(*command: str, asks: str, within_s: float = WAIT_S) -> None:
            log = tmp_path / "server.log"
            stack.enter_context(running(*command, log=log, answers=lambda: has_page(asks), within_s=within_s))

        yield start


# --- OpenTelemetry: a stand-in for a collector -----------------------------------------------------------------


class Collector:
    """Accepts OTLP/HTTP in protobuf and decodes it; it can also refuse, be slow, or be down."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

        self.decoders: dict[str, Any] = {
            "/v1/traces": traces.ExportTraceServiceRequest,
            "/v1/metrics": metrics.ExportMetricsServiceRequest,
            "/v1/logs": logs.ExportLogsServiceRequest,
        }
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.answer = b""
        self.waits = threading.Event()
        """Requests are answered while this is set."""
        self.waits.set()
        self._server: http.server.ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Listen, on the same port each time."""
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                elif self.headers.get("Content-Encoding") == "deflate":
                    body = zlib.decompress(body)
                collector.waits.wait()
                status = collector.status if self.path in collector.decoders else 404
                if status == 200:
                    collector.headers.append(dict(self.headers))
                    collector.requests.append(collector.decoders[self.path].FromString(body))
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(collector.answer)))
                    self.end_headers()
                    self.wfile.write(collector.answer)

            def log_message(self, *_: object) -> None:
                pass

        http.server.ThreadingHTTPServer.allow_reuse_address = True
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=functools.partial(self._server.serve_forever, poll_interval=0.02), daemon=True).start()

    def stop(self) -> None:
        """Stop, in any state."""
        self.waits.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def spans(self) -> list[tuple[dict[str, Any], Any]]:
        """Return every span, with its resource's attributes."""
        found: list[Any] = []
        for request in list(self.requests):
            for resource_spans in getattr(request, "resource_spans", ()):
                resource = attributes(resource_spans.resource.attributes)
                found += [(resource, span) for scope in resource_spans.scope_spans for span in scope.spans]
        return found

    def logs(self) -> list[tuple[dict[str, Any], Any]]:
        """Return every log record, with its resource's attributes."""
        found: list[Any] = []
        for request in list(self.requests):
            for resource_logs in getattr(request, "resource_logs", ()):
                resource = attributes(resource_logs.resource.attributes)
                found += [(resource, log) for scope in resource_logs.scope_logs for log in scope.log_records]
        return found

    def points(self, name: str) -> list[tuple[dict[str, Any], dict[str, Any], Any]]:
        """Return the points of a metric, in order: resource, attributes, point."""
        found: list[Any] = []
        for request in list(self.requests):
            for resource_metrics in getattr(request, "resource_metrics", ()):
                resource = attributes(resource_metrics.resource.attributes)
                for scope in resource_metrics.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == name:
                            data = getattr(metric, metric.WhichOneof("data"))
                            found += [(resource, attributes(point.attributes), point) for point in data.data_points]
        return found


def attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: plain(pair.value) for pair in pairs}


def plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Start a stand-in for an OpenTelemetry collector."""
    pytest.importorskip("opentelemetry.proto")
    found = Collector()
    found.start()
    yield found
    found.stop()


@pytest.fixture
def decoded() -> Callable[[Iterable[Any]], dict[str, Any]]:
    """Return the function that makes a dict of OTLP's attributes."""
    return attributes


# --- Prometheus ------------------------------------------------------------------------------------------------


class Prometheus:
    """A real server that scrapes one target."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, promql: str) -> list[tuple[dict[str, str], float]]:
        """Return the result of a query: a list of labels and value."""
        asked = urllib.parse.urlencode({"query": promql})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}", timeout=10) as answer:
            recorded = json.load(answer)
        assert recorded["status"] == "success", recorded
        data = recorded["data"]
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    def value(self, promql: str) -> float | None:
        """Return the one value that a query returns; None if there is none."""
        found = self.query(promql)
        assert len(found) < 2, found
        return found[0][1] if found else None


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[int], Prometheus]]:
    """Return a function that starts a Prometheus server that scrapes a port, every 200 ms."""
    binary = program("prometheus")
    with contextlib.ExitStack() as stack:

        def start(target_port: int) -> Prometheus:
            port = free_port()
            config = tmp_path / "prometheus.yml"
            config.write_text(
                "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
                "scrape_configs:\n"
                f"  - {{job_name: trackside, static_configs: [{{targets: ['127.0.0.1:{target_port}']}}]}}\n"
            )
            server = Prometheus(port)
            stack.enter_context(
                running(
                    binary,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    log=tmp_path / "prometheus.log",
                    answers=lambda: has_page(f"{server.url}/-/ready"),
                )
            )
            return server

        yield start


# --- NATS ------------------------------------------------------------------------------------------------------


class NatsServer:
    """A real server with JetStream on disk, which can be killed and started again; *inside* runs it elsewhere."""

    def __init__(
        self, binary: str, directory: Path, *options: str, host: str = "127.0.0.1", inside: Sequence[str] = ()
    ) -> None:
        self._command = (*inside, binary)
        self._directory = directory
        self._options = options
        self.host = host
        self.port = free_port()
        self.url = f"nats://{host}:{self.port}"
        self._stack = contextlib.ExitStack()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Listen, on the same port each time."""

        def answers() -> bool:
            with socket.create_connection((self.host, self.port), timeout=5) as line:
                return line.recv(5) == b"INFO "

        self.process = self._stack.enter_context(
            running(
                *self._command,
                *("-a", self.host, "-p", str(self.port), "-js", "-sd", str(self._directory / "jetstream")),
                *self._options,
                log=self._directory / "nats.log",
                answers=answers,
            )
        )

    def stop(self) -> None:
        """Stop, in any state."""
        self._stack.close()

    def call(self, use: Callable[[Any], Any]) -> Any:
        """Return what *use* returns when it is given the client library's JetStream context of a connection."""
        import nats

        async def run() -> Any:
            client = await nats.connect(self.url)
            try:
                return await use(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(run())

    def publish_raw(self, subject: bytes, headers: bytes) -> None:
        """Publish a message without content, whose subject and headers no client library has looked at."""
        sizes = b"%d %d" % (len(headers), len(headers))
        with socket.create_connection((self.host, self.port), timeout=30) as line:
            line.sendall(b'CONNECT {"headers":true,"verbose":false}\r\n')
            line.sendall(b"HPUB %s %s\r\n%s\r\nPING\r\n" % (subject, sizes, headers))
            answer = b""
            while not answer.endswith(b"PONG\r\n"):
                answer += line.recv(4096) or b"closed: PONG\r\n"
        assert b"-ERR" not in answer
        assert b"closed" not in answer

    def pause(self) -> None:
        """Keep connections, and answer nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # its threads go on for a moment

    def resume(self) -> None:
        """Answer again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[Callable[..., NatsServer]]:
    """Return a function that starts a NATS server with further options, once."""
    servers: list[NatsServer] = []

    def start(*options: str) -> NatsServer:
        server = NatsServer(program("nats-server"), tmp_path, *options)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def nats_server(start_nats: Callable[..., NatsServer]) -> NatsServer:
    """Start a NATS server."""
    return start_nats()


@pytest.fixture
def nats_addresses(
    start_nats: Callable[..., NatsServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, str]:
    """Start a server with examples/deploy/nats-server.conf; return the address of the stream that each user has."""
    users = ("rank", "collector", "viewer", "control")
    for user in users:
        monkeypatch.setenv(f"{user.upper()}_PASSWORD", f"{user}-secret")
    text = (Path(__file__).parents[2] / "examples/deploy/nats-server.conf").read_text("utf-8")
    path = tmp_path / "nats-server.conf"
    path.write_text(re.sub(r"jetstream \{.*?\}", "", text, flags=re.DOTALL), "utf-8")  # the fixture says where
    host = start_nats("-c", str(path)).url.removeprefix("nats://")
    return {user: f"nats://{user}:{user}-secret@{host}/acme" for user in users}


@pytest.fixture
def start_nats_cluster(tmp_path: Path) -> Iterator[Callable[..., list[NatsServer]]]:
    """Return a function that starts a cluster of a NATS server on each of *hosts*, *inside* of what runs commands."""
    nodes: list[NatsServer] = []

    def start(hosts: Sequence[str], inside: Sequence[Sequence[str]]) -> list[NatsServer]:
        binary = program("nats-server")
        listens = [f"nats://{host}:{free_port()}" for host in hosts]
        for number, host in enumerate(hosts):
            (tmp_path / f"node-{number}").mkdir()
            options: tuple[str, ...] = (
                "--cluster_name",
                "nodes",
                "-n",
                f"node-{number}",
                "--routes",
                ",".join(listens),
            )
            options += ("--cluster", listens[number])
            nodes.append(NatsServer(binary, tmp_path / f"node-{number}", *options, host=host, inside=inside[number]))
        for node in nodes:
            node.start()
        return nodes

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def nats_cluster(start_nats_cluster: Callable[..., list[NatsServer]]) -> list[NatsServer]:
    """Start a cluster of three NATS servers."""
    return start_nats_cluster(["127.0.0.1"] * 3, [()] * 3)


# --- Google Cloud Monitoring: a stand-in -----------------------------------------------------------------------


class Monitoring:
    """Accepts CreateTimeSeries over gRPC, decodes it, and can refuse or be slow."""

    METHOD = "google.monitoring.v3.MetricService"

    def __init__(self) -> None:
        self.port = free_port()
        self.requests: list[Any] = []
        self.code: Any = None
        self.waits = threading.Event()
        self.waits.set()
        self._server: Any = None

    def start(self) -> None:
        """Listen, on the same port each time."""
        import grpc
        from google.cloud import monitoring_v3
        from google.protobuf import empty_pb2

        def create(request: Any, context: Any) -> Any:
            self.waits.wait()
            if self.code is not None:
                context.abort(self.code, "as the test wants it")
            self.requests.append(request)
            return empty_pb2.Empty()

        handler = grpc.unary_unary_rpc_method_handler(
            create,
            request_deserializer=monitoring_v3.CreateTimeSeriesRequest.deserialize,
            response_serializer=empty_pb2.Empty.SerializeToString,
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(self.METHOD, {"CreateTimeSeries": handler})]
        )
        assert self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        """Stop, in any state."""
        self.waits.set()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def client(self) -> Any:
        """Return the library's own client, speaking to this server."""
        import grpc
        from google.cloud import monitoring_v3
        from google.cloud.monitoring_v3.services.metric_service.transports import MetricServiceGrpcTransport

        channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        return monitoring_v3.MetricServiceClient(transport=MetricServiceGrpcTransport(channel=channel))


@pytest.fixture
def monitoring() -> Iterator[Monitoring]:
    """Start a stand-in for Google Cloud Monitoring."""
    pytest.importorskip("google.cloud.monitoring_v3")
    found = Monitoring()
    found.start()
    yield found
    found.stop()


# --- Google Cloud Logging: a stand-in ----------------------------------------------------------------------------


class CloudLogging:
    """
    Keeps what WriteLogEntries brings over gRPC, once for each id, and lists it by the filters that it is asked for.

    It knows of a filter the comparisons of a log's name, severity, id, job and times, AND, OR and brackets; of others
    it says so. An entry in `hidden` arrived, and is not shown yet. The next write is answered with `code`, if there is
    one, and kept.
    """

    METHOD = "google.logging.v2.LoggingServiceV2"
    PAGE = 3
    """Entries in an answer, however many were asked for."""

    def __init__(self) -> None:
        self.port = free_port()
        self.entries: dict[tuple[Any, str], Any] = {}
        self.hidden: set[str] = set()
        self.filters: list[str] = []
        self.written: list[Any] = []
        self._received = datetime.datetime.min.replace(tzinfo=datetime.timezone.utc)
        self.code: Any = None
        self._server: Any = None

    def start(self) -> None:
        """Listen, on the port that it has."""
        import grpc
        from google.cloud.logging_v2 import types

        def handler(method: Callable[[Any, Any], Any], request: Any, response: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                method, request_deserializer=request.deserialize, response_serializer=response.serialize
            )

        handlers = {
            "WriteLogEntries": handler(self._write, types.WriteLogEntriesRequest, types.WriteLogEntriesResponse),
            "ListLogEntries": handler(self._list, types.ListLogEntriesRequest, types.ListLogEntriesResponse),
        }
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(self.METHOD, handlers)])
        assert self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        """Be gone, whatever was asked for."""
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def _write(self, request: Any, context: Any) -> Any:
        from google.cloud.logging_v2 import types

        self.written.append(request)
        for entry in request.entries:
            entry.log_name = entry.log_name or request.log_name
            entry.insert_id = entry.insert_id or f"made-{len(self.entries):06d}"
            # The machine's clock may be set back; the service's is not.
            tick = datetime.timedelta(microseconds=1)
            self._received = max(datetime.datetime.now(datetime.timezone.utc), self._received + tick)
            entry.receive_timestamp = self._received
            entry.timestamp = entry.timestamp or entry.receive_timestamp
            self.entries.setdefault((entry.timestamp, entry.insert_id), entry)
        if self.code is not None:  # what was written stays written
            code, self.code = self.code, None
            context.abort(code, "as the test wants it")
        return types.WriteLogEntriesResponse()

    def _list(self, request: Any, context: Any) -> Any:
        from google.cloud.logging_v2 import types

        assert list(request.resource_names) == ["projects/my-project"]
        assert request.order_by == "timestamp asc"
        self.filters.append(request.filter)
        found = [entry for key, entry in sorted(self.entries.items()) if key[1] not in self.hidden]
        found = [entry for entry in found if self._is_meant(entry, request.filter)]
        start = int(request.page_token or 0)
        end = start + self.PAGE
        token = str(end) if end < len(found) else ""
        return types.ListLogEntriesResponse(entries=found[start:end], next_page_token=token)

    @staticmethod
    def _is_meant(entry: Any, text: str) -> bool:
        """Return whether *entry* is what the filter *text* asks for."""
        from google.cloud.logging_v2 import types
        from google.logging.type.log_severity_pb2 import LogSeverity

        fields = types.LogEntry.pb(entry).json_payload.fields
        values = {
            "logName": entry.log_name,
            "severity": LogSeverity.Name(entry.severity),
            "insertId": entry.insert_id,
            "jsonPayload.job_name": fields["job_name"].string_value,
            "timestamp": entry.timestamp,
            "receiveTimestamp": entry.receive_timestamp,
        }

        def compared(match: re.Match[str]) -> str:
            field, sign, quoted, bare = match.groups()
            given: Any = bare if quoted is None else json.loads(quoted)
            value = values[field]
            if isinstance(value, datetime.datetime):
                given = datetime.datetime.fromisoformat(given)
            return str(value is not None and COMPARISONS[sign](value, given))

        logic = re.sub(r'([\w.]+) ?(>=|<=|=|>) ?(?:("(?:[^"\\]|\\.)*")|([\w./-]+))', compared, text)
        assert re.fullmatch(r"(True|False|AND|OR|[() ])*", logic), text
        return bool(eval(logic.replace("AND", "and").replace("OR", "or")))

    def client(self) -> Any:
        """Return the library's own client, speaking to this server."""
        import grpc
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.logging_v2 import Client
        from google.cloud.logging_v2._gapic import _LoggingAPI
        from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client
        from google.cloud.logging_v2.services.logging_service_v2.transports import LoggingServiceV2GrpcTransport

        client = Client(project="my-project", credentials=AnonymousCredentials())
        channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        generated = LoggingServiceV2Client(transport=LoggingServiceV2GrpcTransport(channel=channel))
        client._logging_api = _LoggingAPI(generated, client)  # it would ask for TLS
        return client


@pytest.fixture
def cloud_logging() -> Iterator[CloudLogging]:
    """Start a stand-in for Google Cloud Logging."""
    pytest.importorskip("google.cloud.logging")
    found = CloudLogging()
    found.start()
    yield found
    found.stop()
