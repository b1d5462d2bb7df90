"""The texts of errors: causes that they name, calls that they compare."""
