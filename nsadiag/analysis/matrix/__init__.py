"""What the cells of a matrix say together."""
