"""Parts that aggregation schemes share."""
