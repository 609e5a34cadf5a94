"""Documents, and the formats in which they are written."""
