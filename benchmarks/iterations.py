"""
Training iterations with their metrics: the cost to the loop, around the thousandth, far later, and switched off.

One Logger does everything in the training's thread, trackside nearly everything in another one. So times are taken in
bursts, and the work that a burst left for the other thread is done before the next one begins.
"""

from __future__ import annotations

import pathlib
import random
import tempfile
import time

from nv_one_logger.api.config import LoggerConfig, OneLoggerConfig
from nv_one_logger.exporter.file_exporter import FileExporter
from nv_one_logger.training_telemetry.api.callbacks import (
    on_app_end,
    on_app_start,
    on_train_end,
    on_train_start,
    on_training_single_iteration_end,
    on_training_single_iteration_start,
)
from nv_one_logger.training_telemetry.api.config import TrainingTelemetryConfig
from nv_one_logger.training_telemetry.api.training_telemetry_provider import TrainingTelemetryProvider

from benchmarks.measure import Row, Run, budget, compared, interleaved
from trackside.bus import default_bus
from trackside.events import IterationEnded, TrainingConfigured, process_source
from trackside.handlers import EventLog
from trackside.handlers.models import TrainingMetrics
from trackside.instruments import training_iteration, training_loop

_BURST = 50
_DRAIN = 200
"""The iterations of 1 ms that the dispatcher finds when it wakes up: each wake-up of it and of the event log costs."""
_EARLY = 500
_LATE = 1_000_000
_CHUNK = 4_000
"""Iterations that the queue has room for, before what is read of them is waited for."""


def rows() -> list[Row]:
    """Measure, and return the rows."""
    with tempfile.TemporaryDirectory() as directory:
        provider = _theirs(pathlib.Path(directory))
        metrics = TrainingMetrics(publish=default_bus.publish)
        log = default_bus.subscribe(EventLog(pathlib.Path(directory) / "ours", fsync_s=None))
        with log, default_bus.subscribe(metrics) as subscription:
            default_bus.log(TrainingConfigured(perf_tag=["bench"], global_batch_size=32, seq_length=128))
            with training_loop(0):
                found = _heard(metrics)
            if subscription.stats().lost or log.stats().lost:
                raise RuntimeError("events were lost: the figures would compare different work")
        on_train_end()
        provider.force_disable_logging()
        found.append(_unheard())
        on_app_end()
    return found


def _theirs(directory: pathlib.Path) -> TrainingTelemetryProvider:
    """Turn One Logger on, as it is by default, into a file."""
    paths = {"log_file_path_for_info": directory / "info", "log_file_path_for_err": directory / "err"}
    config = OneLoggerConfig(
        application_name="bench",
        world_size_or_fn=1,
        session_tag_or_fn="bench",
        logger_config=LoggerConfig(log_level="CRITICAL", **paths),
        telemetry_config=TrainingTelemetryConfig(
            perf_tag_or_fn="bench", global_batch_size_or_fn=32, seq_length_or_fn=128
        ),
    )
    provider: TrainingTelemetryProvider = TrainingTelemetryProvider.instance()
    provider.with_base_config(config).with_exporter(FileExporter(directory / "theirs.jsonl")).configure_provider()
    on_app_start()
    on_train_start(train_iterations_start=0)
    return provider


def _ours(loops: int) -> None:
    for _ in range(loops):
        with training_iteration():
            pass


def _their_iterations(loops: int) -> None:
    for _ in range(loops):
        on_training_single_iteration_start()
        on_training_single_iteration_end()


def _with_all_done(loops: int) -> None:
    _ours(loops)
    default_bus.flush()


def _heard(metrics: TrainingMetrics) -> list[Row]:
    _ours(_EARLY)
    _their_iterations(_EARLY)
    runs: dict[str, Run] = {"trackside": _ours, "One Logger": _their_iterations}
    early = interleaved(runs, loops=_BURST, repeats=20, settle=default_bus.flush)
    runs = {"all done": _with_all_done, "One Logger": _their_iterations}
    of_all_threads = interleaved(runs, loops=_DRAIN, repeats=9, clock=time.process_time_ns)
    done = _EARLY
    while done < _LATE:
        _ours(_CHUNK)
        default_bus.flush()
        done += _CHUNK
    late = interleaved(
        {"trackside": _ours, "One Logger": _their_iterations}, loops=_BURST, repeats=20, settle=default_bus.flush
    )
    trained = metrics.result().sources[0].training
    if trained is None or trained.num_iterations < _LATE:
        raise RuntimeError("iterations were lost: the figures would compare different work")
    own, others = budget(compiled=0.01, pure=0.08), budget(compiled=0.05, pure=0.40)
    return [
        compared("one training iteration with its metrics", early, "trackside", "One Logger", own),
        compared(f"the same, CPU of all threads, {_DRAIN} at once", of_all_threads, "all done", "One Logger", others),
        compared("the 1,000,000th, against One Logger's 2,000th", late, "trackside", "One Logger", own),
        _read(),
    ]


def _read() -> Row:
    """Compare the memory of the model for an iteration after a million of them and after a thousand."""
    source, rng = process_source(), random.Random(1)
    ended = [
        IterationEnded(parent_span_id=1, step=step, span_id=2, duration_ns=int(10**8 * rng.lognormvariate(0, 0.1)))
        for step in range(1_000)
    ]
    for event in ended:
        event._source = source  # noqa: SLF001  as the dispatcher does

    def reading(model: TrainingMetrics) -> Run:
        def run(loops: int) -> None:
            for _ in range(loops // len(ended)):
                for event in ended:
                    model(event)

        return run

    aged, fresh = reading(TrainingMetrics()), reading(TrainingMetrics())
    aged(_LATE)
    fresh(1_000)
    times = interleaved({"1,000,000th": aged, "1,000th": fresh}, loops=1_000, repeats=20)
    return compared("its metrics alone, in telemetry's thread: the 1,000,000th", times, "1,000,000th", "1,000th", 1.25)


def _unheard() -> Row:
    times = interleaved({"trackside": _ours, "One Logger, off": _their_iterations}, loops=5_000)
    return compared(
        "one training iteration, switched off", times, "trackside", "One Logger, off", budget(compiled=0.01, pure=0.05)
    )
