"""``trackside archive``: the events of a stream as Parquet, run by run, in a directory or an object store."""

from __future__ import annotations

import argparse

from trackside.cli._serving import collecting_rarely, until_signalled
from trackside.events import ConfigError
from trackside.handlers.eventlog import is_stream

HELP = "keep the events of a stream as Parquet"
DESCRIPTION = (
    "Write the events of a stream as Parquet, a table for each type of event, as they come, to a "
    "directory or an object store. Ends at SIGINT or SIGTERM, and goes on where the tables end."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("stream", metavar="STREAM", help="the stream, as nats://HOST:PORT/STREAM, or a run in it")
    parser.add_argument("place", metavar="PLACE", help="a directory, or a bucket as s3://BUCKET/PATH")
    parser.add_argument(
        "--period",
        metavar="SECONDS",
        type=float,
        default=3600.0,
        help="how much time the files of a batch cover (default: %(default).0f)",
    )


def run(options: argparse.Namespace) -> int:
    """Archive until a signal comes."""
    if not is_stream(options.stream):
        raise ConfigError("STREAM", options.stream, "give nats://HOST:PORT/STREAM")
    from trackside.handlers.nats.archive import NatsArchive

    archive = NatsArchive(options.stream, options.place, period_s=options.period)
    with until_signalled(archive.stop), collecting_rarely():
        print(f"archive: {archive.address} to {archive.store.where}", flush=True)
        archive.serve()
    print(", ".join(f"{name} {count}" for name, count in archive.counts.items()))
    return 0
