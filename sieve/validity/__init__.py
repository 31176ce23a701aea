"""Rules that a deployment must obey before memory or speed matter."""
