"""Predict collectives and training steps: the same programs, in virtual time.

A network has few costs: alpha (s a message), beta (s a byte), gamma (s a byte added). ``fitting.py`` finds them
from the measured times of a run, by simulating its cases until they agree; each scheme and each number of ranks
is then predicted from the others, which gives the errors that are printed. ``predict.py`` simulates the cases of
a suite or a run on a network, ``steps.py`` those of training steps, ``parallelism.py`` every mesh of their ranks.

A predicted step is a case whose spec has other ranks or another mesh, simulated as a replay is; its record has the
columns and the marks of a measured one. Nothing is predicted by a formula, and rows beyond what was measured are
marked.
"""
