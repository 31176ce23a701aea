"""Intervals, verdicts, order and ties of simulated candidates."""
