"""nsadiag: who, where and why a distributed PyTorch job hangs, crawls, crashes or trains wrong."""

__version__ = "0.1.0"
