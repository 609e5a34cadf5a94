"""Links, hosts and waiting in one run."""
