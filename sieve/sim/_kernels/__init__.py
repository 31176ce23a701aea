"""Compiled loops; the only place where numba is imported."""
