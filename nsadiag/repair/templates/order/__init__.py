"""The order in which ranks make calls and groups."""
