"""Predict collectives and training steps: the same programs, in virtual time.

A network has few costs: alpha (s a message), beta (s a byte), gamma (s a byte added). ``fitting.py`` finds them
from the measured times of a run, by simulating its cases until they agree; each scheme and each number of ranks
is then predicted from the others, which gives the errors that are printed. A ``NetworkEstimate``
(``network_file.py``) is a network with how well its costs are known: a preset, a file or a fit.

``programs.py`` has the programs of collectives and exchanges, which simulate themselves, and the record of a
prediction. ``predict.py`` predicts the cases of a suite or a run on a network, ``steps.py`` those of
training steps, ``parallelism.py`` every mesh of their ranks. ``layer_tables.py`` makes networks of other tools'
traces.

A predicted step is a case whose spec has other ranks or another mesh, simulated as a replay is; its record has the
columns and the marks of a measured one. Nothing is predicted by a formula, and rows beyond what was measured are
marked.
"""
