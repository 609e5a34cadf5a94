"""Report of predictions."""
