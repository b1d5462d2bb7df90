"""Rules on models of which each rank holds a part: shards, stages, towers, a share of the updates."""
