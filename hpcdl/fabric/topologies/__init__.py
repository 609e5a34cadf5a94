"""Topologies of simulated clusters: each file offers a class, with its links and the route between two hosts."""
