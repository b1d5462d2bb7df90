"""Evidence that other tools collected: flight-recorder dumps, stacks as text, logs; judged by the same rules."""
