"""Recorded paths of ranks side by side: where they parted, and what that goes back to."""
