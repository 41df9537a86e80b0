"""
Print the share of the public surface whose types every checker reads alike: ``python tools/typed_surface.py``.

Pyright counts the public symbols whose type is declared. It fails when the share falls below the one below, which was
reached; raise it with each improvement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
LEAST_PERCENT = 98.5


def main() -> int:
    # Pyright looks for the package where the first python on the PATH does.
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    command = [str(BIN / "pyright"), "--verifytypes", "trackside", "--ignoreexternal", "--outputjson"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout).get("typeCompleteness", {})
    if not found.get("modules"):
        sys.exit(f"pyright found no package:\n{done.stdout}{done.stderr}")
    counts = found["exportedSymbolCounts"]
    percent = 100 * found["completenessScore"]
    print(
        f"public surface: {percent:.1f} % of {sum(counts.values()):,} symbols have a declared type, "
        f"{counts['withAmbiguousType']:,} one that is inferred, {counts['withUnknownType']:,} none"
    )
    if percent < LEAST_PERCENT:
        print(f"that is less than the {LEAST_PERCENT} % that were reached before")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
