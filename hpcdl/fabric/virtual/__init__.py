"""All ranks in one process: the in-process and the simulated interpreter on one engine."""
