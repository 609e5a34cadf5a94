"""Parts that training strategies share; a strategy is one file in the folder above.

Every strategy uses ``session.py`` (its arguments and evaluations), ``gradient.py`` (one gradient, layer by layer),
``inputs.py``, ``journal.py`` (times of steps) and ``traits.py`` (what a strategy declares). Several use
``bucketing.py`` (slices of the gradient), ``compressed.py``, ``topologies.py`` (graphs of gossip) or
``snapshots.py`` (ranks without common steps). ``mesh.py`` and ``sections.py`` divide the layers among
ranks. ``server.py`` and ``server_client.py`` serve parameters. ``noise_and_sharpness.py`` observes a training.

The one rule: a part knows neither the strategy that uses it nor the interpreter, MPI or virtual time. Open
``session.py`` first.
"""
