"""Faults of the machine: a full disk, no home, a killed process."""
