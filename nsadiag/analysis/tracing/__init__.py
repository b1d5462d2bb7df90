"""Questions of rules and the answers that they were given: a record of our own calls, with their lines."""
