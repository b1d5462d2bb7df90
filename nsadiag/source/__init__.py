"""The user's source as a model, parsed once."""
