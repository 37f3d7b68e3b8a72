"""The bucket operations on a CPU, compiled by Numba."""

__all__: list[str] = []
