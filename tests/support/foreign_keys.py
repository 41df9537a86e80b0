"""Keys of attributes, of classes that are not `str`."""

from __future__ import annotations


class Key(str):
    """A key of another class."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


class Raising(Key):
    """A key that cannot be compared."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError("as a foreign key may")
