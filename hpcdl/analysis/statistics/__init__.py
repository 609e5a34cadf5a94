"""Statistics that know no run."""
