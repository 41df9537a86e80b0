"""The peer's module for numbers of names; trackside sends names, and gives numbers only on request."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from trackside.instruments.torch import RankGroup, is_distributed

_TIMEOUT_S: Final = 300.0


class NameMapper:
    """
    Gives sections and kernels numbers from 0, separately, the same on all ranks; a number never changes.

    Args:
        group: The ranks that agree; all of this process's group unless given.

    Attributes:
        kernel_name_to_id: The kernels' numbers.
        section_name_to_id: The sections' numbers.
    """

    def __init__(self, group: RankGroup | None = None) -> None:
        self._group = group
        self.kernel_name_to_id: dict[str, int] = {}
        self.section_name_to_id: dict[str, int] = {}

    @property
    def kernel_counter(self) -> int:
        """The number of kernels that have a number."""
        return len(self.kernel_name_to_id)

    @property
    def section_counter(self) -> int:
        """The number of sections that have a number."""
        return len(self.section_name_to_id)

    @property
    def id_to_kernel_name(self) -> dict[int, str]:
        """The kernels by their numbers."""
        return dict(enumerate(self.kernel_name_to_id))

    @property
    def id_to_section_name(self) -> dict[int, str]:
        """The sections by their numbers."""
        return dict(enumerate(self.section_name_to_id))

    def gather_and_assign_ids(self, kernel_names: Sequence[str], section_names: Sequence[str]) -> None:
        """Give numbers to the names of all ranks, rank by rank; a collective if there are several ranks."""
        if self._group is None and is_distributed():
            self._group = RankGroup(_TIMEOUT_S)
        mine = json.dumps([list(kernel_names), list(section_names)]).encode()
        for data in [mine] if self._group is None else self._group.all_gather(mine):
            kernels, sections = json.loads(data)
            self.assign(kernels, sections)

    def assign(self, kernel_names: Iterable[str], section_names: Iterable[str]) -> None:
        """Give numbers to the names that have none, in their order."""
        for numbers, names in ((self.section_name_to_id, section_names), (self.kernel_name_to_id, kernel_names)):
            for name in names:
                numbers.setdefault(name, len(numbers))

    def get_kernel_id(self, kernel_name: str) -> int:
        """
        Return the number of a kernel.

        Raises:
            KeyError: if it has none.
        """
        return self.kernel_name_to_id[kernel_name]

    def get_section_id(self, section_name: str) -> int:
        """
        Return the number of a section.

        Raises:
            KeyError: if it has none.
        """
        return self.section_name_to_id[section_name]

    def get_kernel_name(self, kernel_id: int) -> str:
        """
        Return the kernel that has a number.

        Raises:
            KeyError: if none has.
        """
        return self.id_to_kernel_name[kernel_id]

    def get_section_name(self, section_id: int) -> str:
        """
        Return the section that has a number.

        Raises:
            KeyError: if none has.
        """
        return self.id_to_section_name[section_id]
