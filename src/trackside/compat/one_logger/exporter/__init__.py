"""Exporters."""

from trackside.compat.one_logger.exporter.exporter import Exporter
from trackside.compat.one_logger.exporter.file_exporter import FileExporter
from trackside.compat.one_logger.exporter.logger_exporter import LoggerExporter

__all__ = ["Exporter", "FileExporter", "LoggerExporter"]
