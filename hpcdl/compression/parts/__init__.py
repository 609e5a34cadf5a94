"""Parts that compressors share."""
