"""Analysis of one run."""
