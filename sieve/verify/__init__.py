"""The tool held against recorded truth: what was measured or recorded, beside what it computes."""
