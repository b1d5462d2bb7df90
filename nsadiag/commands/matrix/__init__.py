"""`nsadiag matrix`: cells are chosen, run side by side, judged and settled into claims."""
