"""Where ranks part in the user's own source, and on what: read from syntax trees, histories and stacks."""
