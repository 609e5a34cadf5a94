"""Report of a history of runs."""
