"""From numbers to pages: what goes into the tables, and one renderer per file."""
