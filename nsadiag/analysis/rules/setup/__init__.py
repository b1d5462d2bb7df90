"""Failures before training begins."""
