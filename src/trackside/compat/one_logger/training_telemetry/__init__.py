"""What a training job uses of One Logger."""

__all__: list[str] = []
