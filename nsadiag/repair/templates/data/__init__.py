"""Data that ranks go through and compute with: as much of it, and the same where it has to be."""
