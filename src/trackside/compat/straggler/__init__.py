"""
NVRx's names for straggler detection over trackside's parts.

A job that uses ``nvidia_resiliency_ext.straggler`` 0.4.1 (or ``nvidia_resiliency_ext.attribution.straggler``) replaces
it by ``trackside.compat.straggler`` in its imports. No GPU is required.
"""

from trackside.compat.straggler._detector import CallableId, Detector
from trackside.compat.straggler.reporting import Report, Statistic, StragglerId

__all__ = ["CallableId", "Detector", "Report", "Statistic", "StragglerId"]
