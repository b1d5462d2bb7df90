"""What a whole matrix says about cost: how it grows with the numbers that were varied, and which cell is far off."""
