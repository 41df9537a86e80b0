"""The recorder that there is."""

__all__: list[str] = []
