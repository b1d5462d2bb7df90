"""The job's own processes and files: its launch, its guard, its scratch directories and logs, its end."""
