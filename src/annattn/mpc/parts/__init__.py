"""Parts that protocols are made of: stages in a row, sorting, trees, and matching by key."""

__all__ = []
