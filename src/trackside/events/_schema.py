"""The limits within which a type of events can be declared and written."""

from __future__ import annotations

from typing import Any, Final

from trackside.events._fields import ENVELOPE

MAX_NAME_LENGTH: Final = 128
MAX_MAP_LENGTH: Final = 1 << 10
"""Of entries in a map, and of fields in a type."""
MAX_SCHEMA_LENGTH: Final = 1 << 14
"""In characters, of all field names of one type together."""
_EXACT_TEXT: Final = frozenset((str,))


def check_schema(name: Any, version: Any, names: Any) -> None:
    """
    Raise unless these can be how a type of events is written.

    Raises:
        TypeError: if they are not a text, a whole number and some texts.
        ValueError: if they are too long or too many, or a field is named twice.
    """
    if type(name) is not str or type(version) is not int or type(names) not in (list, tuple):
        raise TypeError("a schema is a name, a version and the names of its fields")
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"a name of {len(name)} characters; at most {MAX_NAME_LENGTH}")
    if len(names) > MAX_MAP_LENGTH:
        raise ValueError(f"{len(names)} fields; at most {MAX_MAP_LENGTH}")
    if not _EXACT_TEXT.issuperset(map(type, names)):
        raise TypeError("a field's name is a text")
    if sum(map(len, names)) > MAX_SCHEMA_LENGTH:
        raise ValueError(f"the names of the fields have more than {MAX_SCHEMA_LENGTH} characters")
    if len({*ENVELOPE, *names}) < len(ENVELOPE) + len(names):
        raise ValueError("a field is named twice, or like one of the envelope")
