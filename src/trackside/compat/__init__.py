"""
The peers' names over our parts.

Each package here is laid out as the library it stands for, so that a job changes its imports and nothing else.
"""

__all__: list[str] = []
