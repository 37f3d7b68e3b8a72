"""Parts that protocols are put together from: stages in a row, sorting, trees, and sort-scan-send."""

__all__ = []
