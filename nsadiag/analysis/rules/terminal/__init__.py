"""The rules of last resort: a job without a failure, and one that nothing explains."""
