"""One Logger's integrations of frameworks."""

__all__: list[str] = []
