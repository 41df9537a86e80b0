"""The library's version: read by the build, recorded with every source."""

__version__ = "0.2.0"
