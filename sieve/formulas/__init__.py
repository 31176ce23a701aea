"""Formulas as pure functions of numbers and arrays; no files, no frames, no state."""
