"""The library inside other people's models, one folder per framework."""

__all__ = []
