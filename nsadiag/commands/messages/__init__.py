"""Messages about a run, while it runs and when it ends: to the terminal, a webhook or command, and GitHub."""
