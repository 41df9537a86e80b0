"""The configuration of trackside's own messages."""

from __future__ import annotations

import logging
from typing import Final

import attrs

from trackside.events import ConfigError
from trackside.job import _checks as checks

LOGGER: Final = logging.getLogger("trackside")
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@attrs.frozen(kw_only=True)
class LogConfig:
    """
    How trackside's own messages are logged; they go through the standard library's logger ``trackside``.

    Raises:
        ConfigError: if a field is not what it should be.
    """

    log_level: str = attrs.field(default="INFO", validator=checks.one_of(*LEVELS))
    """The lowest level that is logged."""
    log_format: str = attrs.field(default="%(name)s - %(levelname)s - %(message)s", validator=checks.text())
    log_file_path_for_info: str | None = attrs.field(default=None, validator=attrs.validators.optional(checks.text()))
    """A file for all messages; none unless given."""
    log_file_path_for_err: str | None = attrs.field(default=None, validator=attrs.validators.optional(checks.text()))
    """A file for errors; none unless given."""

    def apply(self) -> list[logging.Handler]:
        """
        Set the level and add a handler for each file.

        Returns:
            The handlers, so that the caller can remove them again.

        Raises:
            ConfigError: if a file cannot be written.
        """
        LOGGER.setLevel(self.log_level)
        added: list[logging.Handler] = []
        for field, level in (("log_file_path_for_info", logging.DEBUG), ("log_file_path_for_err", logging.ERROR)):
            path = getattr(self, field)
            if path is None:
                continue
            try:
                handler = logging.FileHandler(path, encoding="utf-8")
            except OSError as error:
                raise ConfigError(field, path, f"give a path that can be written: {error}") from None
            handler.setLevel(level)
            handler.setFormatter(logging.Formatter(self.log_format))
            LOGGER.addHandler(handler)
            added.append(handler)
        return added
