"""The event stream in NATS JetStream: a sink, a reader, and the collectors that divide the runs of a stream."""

from trackside.events._errors import needing_extra

with needing_extra("NATS", "nats"):
    import nats  # noqa: F401  all modules here need it

from trackside.handlers.nats._collect import CollectedRun, NatsCollector, collected
from trackside.handlers.nats._stream import NatsReader, NatsSink, StreamAddress, StreamCopy, copied, is_run, sink_to
from trackside.handlers.nats._verbs import command
from trackside.handlers.nats._viewer import StreamSession

__all__ = [
    "CollectedRun",
    "NatsCollector",
    "NatsReader",
    "NatsSink",
    "StreamAddress",
    "StreamCopy",
    "StreamSession",
    "collected",
    "command",
    "copied",
    "is_run",
    "sink_to",
]
