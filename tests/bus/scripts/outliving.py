"""End, and leave a child behind that never does and holds this process's pipes."""

from __future__ import annotations

import os
import signal

if os.fork() == 0:
    signal.pause()
