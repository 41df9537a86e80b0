"""
The names of ml-goodput-measurement over trackside's parts and local files, in the layout of ``ml_goodput_measurement``.

A job that uses ``ml_goodput_measurement`` 0.2.3 replaces it by ``trackside.compat.goodput`` in its imports::

    from trackside.compat.goodput import goodput, monitoring

No cloud account is needed: records go to files of JSON lines below the directory that ``TRACKSIDE_GOODPUT_DIR``
names, ``goodput`` unless it is set, and ``trackside goodput`` reads them too.
"""

__all__: list[str] = []
