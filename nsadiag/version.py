"""The version, which reports name as well."""

__version__ = "0.2.0"
