"""Predict collectives and training steps by simulation on a given or fitted network."""
