"""The path of a rehearsed rank: lines of the user's code, what they read, exceptions, and the calls of its groups."""
