"""
Install the servers that integration tests run against, as far as that can be done here.

python tools/servers.py prometheus nats-server

Each name is a program and the Debian package that contains it. An installed program is left alone; without apt, or the
right to use it, the tests that need a missing program are skipped by name. This never fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
LIMIT_S = 300
# No service that a package starts by itself may run beside the tests' own servers.
NO_SERVICES = "#!/bin/sh\nexit 101\n"
POLICY = "/usr/sbin/policy-rc.d"


def missing(names: list[str]) -> list[str]:
    """Return those of *names* that are no programs here."""
    return [name for name in names if shutil.which(name, path=PLACES) is None]


def why_not() -> str:
    """Return why nothing can be installed; empty if it can."""
    if shutil.which("apt-get", path=PLACES) is None:
        return "there is no apt-get"
    return "" if os.geteuid() == 0 else "only root may install"


def install(names: list[str]) -> str:
    """Install packages, and return the error; empty if there is none."""
    has_policy = os.path.lexists(POLICY)
    try:
        if not has_policy:
            with open(POLICY, "x", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
                file.write(NO_SERVICES)
        for command in (["update", "-qq"], ["install", "-qq", "-y", "--no-install-recommends", *names]):
            done = subprocess.run(
                ["apt-get", *command],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                check=False,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["apt-get failed"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        if not has_policy and os.path.lexists(POLICY):
            os.unlink(POLICY)  # noqa: PTH108


def main(names: list[str]) -> str:
    """Install the servers, and return the message."""
    wanted = missing(names)
    if not wanted:
        return f"servers: {', '.join(names)}: there already"
    problem = why_not() or install(wanted)
    still = missing(wanted)
    lines = [f"installed {', '.join(name for name in wanted if name not in still)}"] if len(still) < len(wanted) else []
    if still:
        lines.append(
            f"without {', '.join(still)} ({problem or 'the packages do not hold them'}): their tests are skipped"
        )
    return f"servers: {'; '.join(lines)}"


if __name__ == "__main__":
    print(main(sys.argv[1:]))
