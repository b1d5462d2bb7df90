"""Messages by whoever writes them: a row each, with an example and its source."""
