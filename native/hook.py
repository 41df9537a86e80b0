"""The step of hatchling's builds that compiles the core into the wheel, or in place for an editable install."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface):
    """Adds the compiled core to a wheel; without a compiler the wheel is the pure one, ``py3-none-any``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and set the tags of the wheel."""
        native = runpy.run_path(str(Path(self.root, "native", "build.py")))
        self._scratch = tempfile.TemporaryDirectory()
        directory = native["PACKAGE"] if version == "editable" else Path(self._scratch.name)
        try:
            built = native["build"](directory)
        except native["NotBuiltError"] as error:
            self.app.display_warning(f"trackside: goes without its compiled core: {error}")
            return
        if version != "editable":
            build_data["force_include"][str(built)] = f"trackside/{built.name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the temporary directory; the wheel has a copy of its file."""
        self._scratch.cleanup()
