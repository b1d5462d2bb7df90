"""Branches on which ranks go apart: agreed on, left later, or left out."""
