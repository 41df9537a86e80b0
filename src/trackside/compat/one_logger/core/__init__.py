"""Attributes, events, spans and times, as exporters see them."""

__all__: list[str] = []
