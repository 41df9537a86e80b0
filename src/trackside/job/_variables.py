"""Variables of the environment that nothing reads, and the ones that were probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from trackside.events._settings import nearest

_PREFIX: Final = "TRACKSIDE_"
_VARIABLES: Final = ("COLLECTOR", "FORK", "GOODPUT_DIR", "JOB", "KEYS", "ONE_LOGGER", "PARENT", "PURE_PYTHON", "RUN_ID")
"""The variables that trackside reads from the environment, without the prefix."""


def misspelt_variables(environ: Iterable[str]) -> Iterator[tuple[str, str]]:
    """
    Yield each name in *environ* that is probably misspelt, and the variable of trackside that was meant.

    Names that Kubernetes makes for a service, for example the port of ``trackside-collector``, are left out.
    """
    for name in sorted(environ):
        word = name.removeprefix(_PREFIX)
        if word != name and not any(word == known or word.startswith(f"{known}_") for known in _VARIABLES):
            meant = nearest(word, _VARIABLES)
            if meant is not None:
                yield name, _PREFIX + meant
