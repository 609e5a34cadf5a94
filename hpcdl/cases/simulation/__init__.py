"""Steps without computation, on simulated or real networks."""
