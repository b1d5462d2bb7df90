"""The selected branch: which blocks are the top n, and attention to them."""
