"""What the command line offers whoever types: help, completion, and what was meant by a mistake."""
