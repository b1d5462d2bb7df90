"""Jobs on a Ray cluster: a placement group for each, and one actor on each of its nodes that runs an agent."""
