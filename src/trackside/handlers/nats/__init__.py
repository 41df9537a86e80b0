"""The event stream in NATS JetStream: a sink, a reader, and the collectors that divide the runs of a stream."""

from trackside.events import MissingExtraError

try:
    import nats  # noqa: F401  all modules here need it
except ImportError as error:
    raise MissingExtraError("NATS", "nats", error) from error

from trackside.handlers.nats._collect import CollectedRun, NatsCollector, collected
from trackside.handlers.nats._stream import NatsReader, NatsSink, StreamAddress, StreamCopy, copied, sink_to
from trackside.handlers.nats._verbs import command

__all__ = [
    "CollectedRun",
    "NatsCollector",
    "NatsReader",
    "NatsSink",
    "StreamAddress",
    "StreamCopy",
    "collected",
    "command",
    "copied",
    "sink_to",
]
