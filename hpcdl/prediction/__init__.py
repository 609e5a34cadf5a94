"""Predict collectives and training steps: the same programs, in virtual time.

A network has few prices: alpha (s a message), beta (s a byte), gamma (s a byte added). ``fitting.py`` finds them
from the measured times of a run, by simulating its cases until they agree; each scheme and each number of ranks
is then predicted from the others, which gives the errors that are printed. ``predict.py`` simulates the cases of
a suite or a run on a network, ``parallelism.py`` chooses splits of layers and meshes. Nothing is predicted by a
formula, and rows beyond what was measured are marked.
"""
