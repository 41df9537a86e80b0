"""What ``nv_one_logger.wandb`` has."""

__all__: list[str] = []
