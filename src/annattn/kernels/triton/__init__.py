"""The bucket operations on NVIDIA GPUs; the kernels are imported when a call is first run here."""

__all__: list[str] = []
