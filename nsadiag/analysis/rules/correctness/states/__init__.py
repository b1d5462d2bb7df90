"""States that are taken and put back: those that a restart within the job loses, and those that are loaded into nothing."""
