"""The default recorder."""

__all__: list[str] = []
