"""
The names of other libraries over trackside's parts.

Each package here has the layout of the library that it replaces, so that a job changes its imports alone.
"""

__all__: list[str] = []
