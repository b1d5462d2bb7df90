"""Ways back from an expression to what makes ranks differ."""
