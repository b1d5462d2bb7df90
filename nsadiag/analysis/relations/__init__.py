"""What ranks did relative to each other: who waits for whom, who differs, since when."""
