"""
What both Lightning packages share; imports neither.

A class for each package joins `LightningHooks` to that package's own ``Callback``.
"""

from trackside.instruments._lightning._hooks import LightningHooks
from trackside.instruments._lightning._trainer_class import hooked

__all__ = ["LightningHooks", "hooked"]
