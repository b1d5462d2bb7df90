"""Facts of single ranks, decoded: calls, stacks, exceptions, exits."""
