"""Report of a comparison of two sides."""
