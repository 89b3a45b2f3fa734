"""What several methods compute in the same way."""
