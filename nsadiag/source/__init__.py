"""The user's source as a model: parsed once, and asked by whoever wants to know what a line means."""
