"""From traces to numbers: statistics over ranks, steps and launches, and scaling."""
