"""Runs inside the user's ranks: standard library and torch only, and never an exception into the job."""
