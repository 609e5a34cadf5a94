"""What several test folders hold their subjects to: the same tests for each interpreter of the fabric."""
