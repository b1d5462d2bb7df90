"""Causes that messages of logs and other tools state."""
