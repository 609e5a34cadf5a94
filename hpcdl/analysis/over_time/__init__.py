"""Series over many runs, and comparison of two sides."""
