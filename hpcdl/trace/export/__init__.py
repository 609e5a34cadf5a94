"""Files for other tools, made of a run's events."""
