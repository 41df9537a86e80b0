"""The attributes of a span or an event: values by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from trackside.compat.one_logger.core.exceptions import assert_that

if TYPE_CHECKING:
    from typing_extensions import Self

AttributeValue: TypeAlias = str | bool | int | float | list[Any] | None
"""A primitive, or a list of primitives of one type."""

_PRIMITIVES = (str, bool, int, float, type(None))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (*_PRIMITIVES, list)) else str(value)


@attrs.define
class Attribute:
    """
    A name and a value; a value that is neither a primitive nor a list is kept as text.

    Raises:
        OneLoggerError: if the value is a list of anything but primitives of the first one's type.
    """

    name: str
    value: AttributeValue = attrs.field(converter=_plain)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.value, list) and self.value:
            kind = type(self.value[0])
            is_sound = kind in _PRIMITIVES and all(isinstance(value, kind) for value in self.value)
            assert_that(is_sound, f"attribute {self.name!r} is {self.value!r}; give a list of primitives of one type")


class Attributes(dict[str, Attribute]):
    """Attributes by name, made from a dict of values."""

    def __init__(self, dictionary: Mapping[str, AttributeValue] | None = None) -> None:
        super().__init__()
        for name, value in (dictionary or {}).items():
            self.add(name, value)

    def add(self, name: str, value: AttributeValue) -> Self:
        """Add a value, or replace it."""
        self[name] = Attribute(name, value)
        return self

    def add_attribute(self, attribute: Attribute) -> Attribute:
        """Add *attribute*, or replace the one of its name."""
        self[attribute.name] = attribute
        return attribute

    def add_attributes(self, other_attributes: Mapping[str, Attribute]) -> None:
        """Add all of *other_attributes*, which replace those of the same name."""
        self.update(other_attributes)

    def to_json(self) -> dict[str, Any]:
        """Return the values by name."""
        return {attribute.name: attribute.value for attribute in self.values()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Self:
        """Return the attributes that `to_json` wrote."""
        made = cls()
        for name, value in (data or {}).items():
            made.add(name, value)
        return made

    @classmethod
    def merge(
        cls, attributes: Mapping[str, Attribute] | None = None, other: Mapping[str, Attribute] | None = None
    ) -> Self:
        """Return both merged, as an instance of the class that this is called on; *other* takes precedence."""
        merged = cls()
        merged.update(attributes or {})
        merged.update(other or {})
        return merged

    def get_bool_value(self, attribute_name: str) -> bool | None:
        """Return the value, or None if there is none."""
        return self._get(attribute_name, bool)  # type: ignore[no-any-return]

    def get_int_value(self, attribute_name: str) -> int | None:
        """Return the value, or None if there is none."""
        return self._get(attribute_name, int)  # type: ignore[no-any-return]

    def get_float_value(self, attribute_name: str) -> float | None:
        """Return the value, or None if there is none."""
        return self._get(attribute_name, float, int)  # type: ignore[no-any-return]

    def get_str_value(self, attribute_name: str) -> str | None:
        """Return the value, or None if there is none."""
        return self._get(attribute_name, str)  # type: ignore[no-any-return]

    def _get(self, name: str, *kinds: type) -> Any:
        """
        Return the value of *name*, or None if there is none.

        Raises:
            OneLoggerError: if it is of none of *kinds*.
        """
        if name not in self:
            return None
        value = self[name].value
        assert_that(isinstance(value, kinds), f"attribute {name!r} is {value!r}, which is no {kinds[0].__name__}")
        return value
