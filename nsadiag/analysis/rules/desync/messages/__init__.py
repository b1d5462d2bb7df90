"""Messages that pipeline stages owe each other: the stage to blame, and the loop that it left."""
