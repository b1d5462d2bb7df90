"""`nsadiag matrix --engine`: cells as a scheduler's jobs, and the agent that such a job starts on each node."""
