"""The user's program as a tree: possible cuts, their dependencies, and the text that is left."""
