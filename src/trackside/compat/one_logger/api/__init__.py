"""Configuration, and spans of any name."""

from trackside.compat.one_logger.api.config import LoggerConfig, OneLoggerConfig, OneLoggerErrorHandlingStrategy

__all__ = ["LoggerConfig", "OneLoggerConfig", "OneLoggerErrorHandlingStrategy"]
