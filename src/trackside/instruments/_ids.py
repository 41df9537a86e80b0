"""The numbers of spans: they count up per process, so a span has a higher one than any opened before it."""

from __future__ import annotations

import itertools
from typing import Final

from trackside._free_threading import shared

next_id: Final = shared(itertools.count(1).__next__)
"""Returns the next number; one call into C, so no two threads get the same."""
