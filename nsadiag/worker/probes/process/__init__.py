"""The process itself: threads, logging handlers, memory."""
