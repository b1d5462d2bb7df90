"""What is taken is put back: states that a restart within the job loses, and states that are loaded into nothing."""
