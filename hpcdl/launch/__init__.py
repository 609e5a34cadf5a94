"""Around the run: what the machine is, and how ranks come to be."""
