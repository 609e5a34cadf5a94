"""Parts that training strategies share; a strategy is one file in the folder above.

Every strategy uses ``session.py`` (its arguments), ``gradient.py`` (one gradient, layer by layer), ``inputs.py``,
``evaluation.py``, ``journal.py`` (times of steps) and ``traits.py`` (what a strategy declares). Several use
``bucketing.py`` (slices of the gradient), ``topologies.py`` (graphs of gossip) or ``snapshots.py`` (ranks without
common steps). ``noise_and_sharpness.py`` observes a training. Each room has the parts of one idea.

The one rule: a part knows neither the strategy that uses it nor the interpreter, MPI or virtual time. Open
``session.py`` first.
"""
