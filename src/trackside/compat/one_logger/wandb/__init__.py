"""The names of ``nv_one_logger.wandb``."""

__all__: list[str] = []
