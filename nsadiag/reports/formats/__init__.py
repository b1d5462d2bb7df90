"""Renderers of a report to a file: HTML, Markdown, JUnit, traces and others."""
