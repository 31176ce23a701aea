"""Measured results as input: reading them, and fitting models to them."""
