"""Relations between ranks: waits, differences, and since when."""
