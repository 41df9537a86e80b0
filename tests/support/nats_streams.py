"""Collectors of a stream in NATS on threads of this process, and the answers of one reading, which they are to have."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import trackside
from trackside.events import ConfigError, Event, Source
from trackside.handlers.nats import NatsCollector, NatsReader, StreamAddress
from trackside.handlers.zeromq._collector import collector_models
from trackside.wire import fields_of


@contextlib.contextmanager
def collector_of(address: str, **options: Any) -> Iterator[NatsCollector]:
    """Have a collector of the stream at *address* on a thread of this process."""
    collector = NatsCollector(address, **{"lease_s": 1.5, "checkpoint_interval_s": 0.1, **options})
    thread = threading.Thread(target=collector.serve)
    thread.start()
    try:
        yield collector
    finally:
        collector.stop()
        thread.join(60)
        assert not thread.is_alive()


def answers(models: Iterable[Any]) -> dict[str, tuple[Any, Any]]:
    """Return what each of *models* knows and says; None as the result of one that has seen no rank yet."""
    results = {}
    for model in models:
        results[type(model).__name__] = model.dump(), None
        with contextlib.suppress(ConfigError):
            results[type(model).__name__] = model.dump(), model.result()
    return results


def replayed(address: str, run: str) -> tuple[dict[str, tuple[Any, Any]], list[Mapping[str, Any]]]:
    """Return the answers to one reading of the stream, and the reports that are derived on the way."""
    place = StreamAddress.parse(address)
    reports: list[Event] = []
    models = collector_models(reports.append)
    with NatsReader(place.servers, stream=place.stream, follow=False) as events:
        trackside.feed((event for event in events if event.source.run_id == run), *models)
        for model in models:
            model.missed(Source.unknown(""), events.missing)
    return answers(models), [fields_of(event) for event in reports]
