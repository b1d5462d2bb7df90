"""What one rank did, decoded: calls, stacks, exceptions, exits."""
