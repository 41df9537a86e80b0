"""``trackside forward``: send the streams of a node's ranks on over one connection."""

from __future__ import annotations

import argparse
import sys

from trackside.cli._serving import add_safety, paste_ready, until_signalled
from trackside.handlers.zeromq import Forwarder

HELP = "send a node's ranks on over one connection"
DESCRIPTION = (
    "Take the streams of a node's ranks in and send them on, as they came, to a collector or "
    "another forwarder. Ends at SIGINT or SIGTERM."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--bind", metavar="ENDPOINT", required=True, help="where ranks connect to, as tcp://*:7070")
    parser.add_argument("--to", metavar="ENDPOINT", required=True, help="the collector, or another forwarder")
    add_safety(parser)


def run(options: argparse.Namespace) -> int:
    """Forward until a signal comes; return 1 if the other end did not get everything."""
    forwarder = Forwarder(options.bind, to=options.to, keys=options.keys, insecure=options.insecure)
    with until_signalled(forwarder.stop):
        try:
            print(f"ranks: TRACKSIDE_COLLECTOR={paste_ready(forwarder.endpoint)}")
            sys.stdout.flush()
            forwarder.serve()
        finally:
            done = forwarder.close()
    rest = f"; {forwarder.undelivered:,} were not acknowledged" if forwarder.undelivered else ""
    print(f"delivered {forwarder.delivered:,} events{rest}")
    return 0 if done else 1
