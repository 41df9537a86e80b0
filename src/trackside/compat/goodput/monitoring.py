"""The peer's module of the monitor; it needs the extra ``tensorboard``, and sends with ``google-cloud-monitoring``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from trackside.compat.goodput._monitor import UploadingMonitor
from trackside.compat.goodput.goodput_utils import (
    GCPOptions,
    get_accelerator_type,
    get_gcp_project_id,
    get_node_zone,
)
from trackside.events import ConfigError, Handler, MissingExtraError
from trackside.handlers.tensorboard import TensorBoardSink

_missing = ""
try:
    from trackside.handlers import google_cloud_monitoring as cloud
except MissingExtraError as _error:
    cloud = None  # type: ignore[assignment]
    _missing = str(_error)

logger: logging.Logger = logging.getLogger(__name__)

__all__ = ["GoodputMonitor"]


class GoodputMonitor(UploadingMonitor):
    """
    Publishes a job's goodput on an interval, for TensorBoard and on trackside's bus.

    Its arguments are those of `UploadingMonitor`. Rolling windows are curves like the other figures; the peer draws
    them in its cloud alone. On a machine of Google's, or with a project and a location in ``gcp_options``, all figures
    go to Google Cloud Monitoring too, unless ``gcp_options`` turn that off.
    """

    def _sinks(self, directory: str) -> Sequence[Handler]:
        return [TensorBoardSink(directory)]

    def _cloud_sinks(self, job_name: str, options: GCPOptions) -> Sequence[Handler]:
        only = []
        if options.enable_gcp_goodput_metrics:
            only += ["goodput", "windows"]
        if options.enable_gcp_step_deviation_metrics:
            only.append("step_deviation")
        if not only:
            return []
        # If the project is not known, the machine is not Google's and has no metadata.
        project = options.project_id or get_gcp_project_id()
        location = project and (options.location or get_node_zone())
        if not project or not location:
            logger.warning("Google Cloud Monitoring gets nothing: the project or the location is not known")
            return []
        if cloud is None:
            logger.warning("Google Cloud Monitoring gets nothing: %s", _missing)
            return []
        accelerator = options.acc_type or get_accelerator_type()
        try:
            # One sink for each uploader, because waiting updates replace each other.
            return [
                cloud.GoogleCloudMonitoringSink(
                    project,
                    location,
                    workload_id=job_name,
                    replica_id=options.replica_id,
                    accelerator_type=accelerator,
                    cluster_name=options.cluster_name,
                    only=[kind],
                )
                for kind in only
            ]
        except ConfigError as error:
            logger.warning("Google Cloud Monitoring gets nothing: %s", error)
            return []
