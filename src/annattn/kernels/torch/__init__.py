"""The bucket operations in plain torch: any device, and the truth for the other backends."""

__all__: list[str] = []
