"""What rules asked and what they were answered: a record of our own calls, with their lines."""
