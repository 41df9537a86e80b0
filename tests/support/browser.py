"""A headless Chromium that opens pages, evaluates in them and takes pictures of them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""The path of the program; None where there is none: ``python3 tools/servers.py chromium`` installs it."""
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    " --disable-component-update --disable-sync --disable-extensions --remote-debugging-pipe"
).split()


class Browser:
    """A headless browser, controlled over its pipe."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads from descriptor 3 and writes to 4.
        command = 'exec "$@" 3<&"$IN" 4>&"$OUT"'
        self.process = subprocess.Popen(
            ["bash", "-c", command, "bash", CHROMIUM, *QUIET, f"--user-data-dir={profile}", "about:blank"],
            env={**os.environ, "IN": str(theirs_in), "OUT": str(theirs_out)},
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = ours_out, ours_in
        self._read = b""
        self._number = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        os.close(self._out)
        os.close(self._in)
        self.process.kill()
        self.process.wait()

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Return the result of *method*; keep the events that come before."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            more = os.read(self._in, 1 << 16)
            assert more, "the browser is gone"
            self._read += more
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def resize(self, width: int, height: int) -> None:
        """Show pages in a window of so many pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self) -> bytes:
        """Return what is shown, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def open(self, address: str) -> None:
        """Open a page and wait until it is loaded."""
        self.events = []
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + 60
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < deadline, "the page was not loaded"
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """Return the value of *expression* in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")
