"""Native Sparse Attention: the model, its kernels and its trainer."""

__version__ = "0.1.0"
