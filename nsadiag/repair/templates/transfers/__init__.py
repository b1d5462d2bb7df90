"""Messages between ranks: their order, shapes and waits."""
