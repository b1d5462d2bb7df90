"""Jobs of Ray's: which actor waits for which, over calls, torch groups, queues and resources, and who holds all of them up."""
