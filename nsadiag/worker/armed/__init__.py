"""Ranks that record without having been asked (`nsadiag arm`)."""
