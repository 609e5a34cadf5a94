"""Content of a report about one run."""
