"""
One Logger's API over trackside's parts, in the layout of ``nv_one_logger``.

A job that is instrumented with One Logger's training telemetry 2.3.1 replaces ``nv_one_logger`` by
``trackside.compat.one_logger`` in its imports.
"""

__all__: list[str] = []
