"""Fast attention by nearest-neighbour hashing, and its equivalence with massively parallel computation."""

__version__ = "0.1.0"
