"""Watching for stragglers from a callback, with the arguments of NVRx's callback; shared by both Lightning packages."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from trackside.bus import Subscription, default_bus
from trackside.core import is_from_signal_handler
from trackside.events import ConfigError, process_source
from trackside.handlers.models.scores import INDIVIDUAL, RELATIVE, ScoreReport, Thresholds
from trackside.instruments import configure_sections
from trackside.integrations._lightning_hooks import LightningHooks
from trackside.job import StragglerWatch, running_job

_FIT: Final = "fit"
_END_S: Final = 2.0
_STOPPED: Final = 1
"""The status of a process that stopped because of a straggler: its launcher may start it elsewhere."""


class StragglerHooks(LightningHooks):
    """
    Watches for stragglers while the trainer fits, with the arguments of the resiliency extension's callback.

    Args:
        report_time_interval: The time between two reports, in seconds.
        calc_relative_gpu_perf: Whether to compare each rank with its peers; sections as well as GPUs.
        calc_individual_gpu_perf: Whether to compare each rank with its own past.
        num_gpu_perf_scores_to_print: How many of the worst and of the best ranks to print; 0 prints only stragglers.
        gpu_relative_perf_threshold: The relative score strictly below which a rank is a straggler.
        gpu_individual_perf_threshold: The same for the individual score.
        stop_if_detected: Save a checkpoint and end every rank with status 1, at the same step, once there is a
            straggler; without a checkpoint callback, only end the training.
        enable_ptl_logging: Whether to log the scores through the module's own ``log``.
        profiling_interval: Time the first of every so many entries of each section.
        logger_name: The logger for reports.
        section_relative_perf_threshold: The relative score for sections; the one for GPUs unless given.
        section_individual_perf_threshold: The individual score for sections; the one for GPUs unless given.
        agree_every_steps: With *stop_if_detected*, the ranks agree every so many steps. Without a directory for an
            event log, they also exchange their windows then.
        num_gpu_perf_scores_to_log: Another name of *num_gpu_perf_scores_to_print*.
        more: The arguments of `LightningHooks`.

    Raises:
        ConfigError: if neither kind of score is chosen, or a number is out of its range.
    """

    def __init__(  # noqa: PLR0917  the peer's signature
        self,
        report_time_interval: float,
        calc_relative_gpu_perf: bool,  # noqa: FBT001
        calc_individual_gpu_perf: bool,  # noqa: FBT001
        num_gpu_perf_scores_to_print: int = 5,
        gpu_relative_perf_threshold: float = 0.7,
        gpu_individual_perf_threshold: float = 0.7,
        stop_if_detected: bool = False,  # noqa: FBT001, FBT002
        enable_ptl_logging: bool = False,  # noqa: FBT001, FBT002
        profiling_interval: int = 1,
        logger_name: str = "trackside.stragglers",
        *,
        section_relative_perf_threshold: float | None = None,
        section_individual_perf_threshold: float | None = None,
        agree_every_steps: int = 50,
        num_gpu_perf_scores_to_log: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        chosen = {RELATIVE: calc_relative_gpu_perf, INDIVIDUAL: calc_individual_gpu_perf}
        if not any(chosen.values()):
            raise ConfigError("calc_relative_gpu_perf", False, "choose that, calc_individual_gpu_perf, or both")  # noqa: FBT003
        if num_gpu_perf_scores_to_log is not None:
            num_gpu_perf_scores_to_print = num_gpu_perf_scores_to_log
        if num_gpu_perf_scores_to_print < 0:
            raise ConfigError("num_gpu_perf_scores_to_print", num_gpu_perf_scores_to_print, "give a number from 0")
        relative, individual = section_relative_perf_threshold, section_individual_perf_threshold
        self._options: dict[str, Any] = {
            "kinds": [kind for kind, is_chosen in chosen.items() if is_chosen],
            "thresholds": Thresholds(
                gpu_relative=gpu_relative_perf_threshold,
                gpu_individual=gpu_individual_perf_threshold,
                section_relative=gpu_relative_perf_threshold if relative is None else relative,
                section_individual=gpu_individual_perf_threshold if individual is None else individual,
            ),
            "report_interval_s": report_time_interval,
            "stop_if_detected": stop_if_detected,
            "agree_every_steps": agree_every_steps,
        }
        StragglerWatch(**self._options)  # raises errors in the options here, not on the first step
        self._interval_s = report_time_interval
        self._profiling_interval = profiling_interval
        self._most = num_gpu_perf_scores_to_print
        self._logs = enable_ptl_logging
        self._logger = logging.getLogger(logger_name)
        self._stragglers: StragglerWatch | None = None
        self._subscription: Subscription | None = None
        self._step = 0
        self._seen: tuple[int, int, int] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to watch the run, and in a fit begin to watch for stragglers."""
        super().setup(trainer, pl_module, stage)
        self._end_watching()
        if stage != _FIT:
            return
        running = running_job()
        where = running.directory if running is not None else None
        source, options = process_source(), self._options
        if where is None and trainer.world_size > 1:
            # Without a directory to which all ranks write, they exchange windows at the steps at which they agree.
            source = attrs.evolve(source, rank=trainer.global_rank, world_size=trainer.world_size)
            options = {**options, "windows_from": "gather", "report_every_steps": options["agree_every_steps"]}
        every = max(1, self._profiling_interval)
        if self._interval_s > 0:
            configure_sections(window_s=self._interval_s, profiling_interval=self._profiling_interval)
        else:
            configure_sections(window_steps=every, profiling_interval=self._profiling_interval)
        self._step = trainer.global_step
        self._stragglers = StragglerWatch(**options)
        self._subscription = self._stragglers.begin(default_bus, source, where or Path())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any, **more: Any) -> None:
        """Close the iteration, if the optimizer has stepped; report if that is due, and stop if the ranks agree."""
        super().on_train_batch_end(trainer, pl_module, *batch, **more)
        watch = self._stragglers
        # Once per step of the optimizer, which all ranks count alike, not per batch.
        if watch is None or trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        report = watch.report_if_due()
        if report is not None:
            self._report(report, pl_module)
        if watch.should_stop(self._step - 1):
            self._stop(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Leave the trainer as it was found."""
        super().teardown(trainer, pl_module, stage)
        self._end_watching()

    def _end_watching(self) -> None:
        watch, self._stragglers = self._stragglers, None
        subscription, self._subscription = self._subscription, None
        if watch is not None:
            default_bus.flush(_END_S)
            watch.end(_END_S)
        if subscription is not None:
            subscription.close(_END_S)

    def _report(self, report: ScoreReport, pl_module: Any) -> None:
        key = (report.attempt, report.window, report.revision)
        if key == self._seen:
            return
        self._seen = key
        for line in described(report, self._most):
            self._logger.info(line)
        for line in warnings_of(report):
            self._logger.warning(line)
        if self._logs:
            try:
                pl_module.log_dict(scalars(report), batch_size=1, rank_zero_only=True)
            except Exception as error:
                if is_from_signal_handler(error):
                    raise
                self._logger.warning("the scores cannot be logged", exc_info=True)

    def _stop(self, trainer: Any) -> None:
        """End the training on this rank as on all others, at a step that all have agreed on."""
        trainer.should_stop = True
        saver = trainer.checkpoint_callback
        self._logger.warning("stopping after step %d: there is a straggler", self._step - 1)
        if saver is None:
            return
        name = getattr(saver, "CHECKPOINT_NAME_LAST", "last") + getattr(saver, "FILE_EXTENSION", ".ckpt")
        place = getattr(saver, "dirpath", None) or trainer.default_root_dir
        trainer.save_checkpoint(f"{place}/{name}")  # the path may be a URL
        # On its way out, the trainer waits for writes in the background.
        raise SystemExit(_STOPPED)


def described(report: ScoreReport, most: int) -> Iterator[str]:
    """
    Yield a line for each kind of score and each section or kernel.

    Args:
        report: The scores.
        most: How many of the worst and of the best ranks to name, if there are more than twice as many; 0 for no line.
    """
    if not most:
        return
    for kind, scores in report.kinds():
        for what, column in scores.columns():
            known = sorted(
                (score, report.ranks[place], report.nodes[place])
                for place, score in enumerate(column)
                if score is not None
            )
            if not known:
                continue
            named = [f"rank {rank} ({node or 'unknown node'}) {score:.2f}" for score, rank, node in known]
            if len(named) > 2 * most:
                text = f"worst {', '.join(named[:most])}; best {', '.join(named[-most:][::-1])}"
            else:
                text = ", ".join(named)
            yield f"{kind} {what}, steps {report.first_step} to {report.last_step}: {text}"


def warnings_of(report: ScoreReport) -> Iterator[str]:
    """Yield a line for each kind of score with stragglers, with the step since which each of them is one."""
    for kind, _ in report.kinds():
        slow = [straggler for straggler in report.stragglers if straggler.kind == kind]
        if slow:
            named = [f"rank {one.rank} ({one.node}), {one.what} {one.score:.2f} since {one.since_step}" for one in slow]
            yield f"{kind} stragglers: {'; '.join(named)}"


def scalars(report: ScoreReport) -> dict[str, float]:
    """Return the smallest, the median and the largest score of each kind that any rank has, by name."""
    summary: dict[str, float] = {}
    for kind, scores in report.kinds():
        for what, column in scores.columns():
            known = [score for score in column if score is not None]
            name = f"gpu_{kind}_perf" if what == "gpu" else f"section_{kind}_perf/{what.removeprefix('section ')}"
            if known:
                summary |= {
                    f"{name}/min": min(known),
                    f"{name}/median": statistics.median(known),
                    f"{name}/max": max(known),
                }
    return summary
