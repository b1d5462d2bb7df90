"""Jobs of Ray's: their calls and actors, and where each stands."""
