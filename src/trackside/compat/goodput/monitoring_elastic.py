"""The peer's module of the monitor of elastic jobs; it needs the extra ``tensorboard``."""

from __future__ import annotations

from typing import Any

from trackside.compat.goodput._calculator import ElasticGoodputCalculator
from trackside.compat.goodput.monitoring import GoodputMonitor
from trackside.events import GoodputUpdated

__all__ = ["ElasticGoodputMonitor"]


class ElasticGoodputMonitor(GoodputMonitor):
    """`GoodputMonitor` for an elastic job; *options* are its other arguments."""

    _make_calculator = ElasticGoodputCalculator

    def __init__(
        self,
        job_name: str,
        logger_name: str,
        tensorboard_dir: str,
        upload_interval: float,
        monitoring_enabled: bool = False,
        include_badput_breakdown: bool = False,
        include_step_deviation: bool = False,
        include_slice_efficiency: bool = False,
        **options: Any,
    ) -> None:
        self.include_slice_efficiency = include_slice_efficiency
        super().__init__(
            job_name,
            logger_name,
            tensorboard_dir,
            upload_interval,
            monitoring_enabled=monitoring_enabled,
            include_badput_breakdown=include_badput_breakdown,
            include_step_deviation=include_step_deviation,
            **options,
        )

    def _publish(self, update: GoodputUpdated, changes: dict[str, Any]) -> None:
        super()._publish(update, changes if self.include_slice_efficiency else {**changes, "slice_efficiency": {}})
