"""`nsadiag bisect` and `nsadiag shrink`."""
