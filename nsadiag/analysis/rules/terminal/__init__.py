"""What is left where no rule applies."""
