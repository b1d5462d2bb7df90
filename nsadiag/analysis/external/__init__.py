"""Evidence that others collected: flight-recorder dumps, stacks as text, logs; judged by the same detectors."""
