"""The pictures of a run's page, as values: a timeline, who waits for whom, source and stacks, costs, cited records."""
