"""Cost over a whole matrix: its growth with the numbers that were varied, and the outlying cells."""
