"""Additions to every finding: hosts, frames of libraries, citations that hold."""
