"""Hostile input for every reader: only `SieveError` may leave the library."""
