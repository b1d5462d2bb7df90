"""The turns of a rank's user code in a real job, by sys.monitoring (Python 3.12 and later)."""
