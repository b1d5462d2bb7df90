"""Help, completion, and what was meant by a mistake, for whoever types a command."""
