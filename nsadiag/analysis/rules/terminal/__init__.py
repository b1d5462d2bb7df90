"""Rules of last resort: a job without a failure, and one that no other rule explains."""
