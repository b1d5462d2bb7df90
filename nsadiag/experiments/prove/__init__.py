"""One job on several ranks and alone: whether they compute the same (docs/prove.md)."""
