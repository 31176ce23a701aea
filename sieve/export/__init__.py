"""What a chosen candidate is started with; one target a file."""
