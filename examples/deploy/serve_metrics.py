"""Serve the metrics of a job to Prometheus, from the logs that a collector keeps."""

from __future__ import annotations

import argparse
import signal
import threading

import trackside
from trackside.handlers.prometheus_client import PrometheusSink


def main() -> None:
    """Follow the logs until the process is asked to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", help="the directory that the collector writes to; it may not exist yet")
    parser.add_argument("--port", type=int, default=9464, help="where Prometheus scrapes (default: 9464)")
    parser.add_argument("--address", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    sink = PrometheusSink(options.port, address=options.address)
    for event in trackside.follow(options.logs, stop=stop, wait=True):
        sink(event)
    sink.close(5.0)


if __name__ == "__main__":
    main()
