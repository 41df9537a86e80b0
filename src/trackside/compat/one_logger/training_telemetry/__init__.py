"""One Logger's package for training jobs."""

__all__: list[str] = []
