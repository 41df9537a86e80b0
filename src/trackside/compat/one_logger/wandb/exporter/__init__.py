"""The exporters to Weights & Biases."""

__all__: list[str] = []
