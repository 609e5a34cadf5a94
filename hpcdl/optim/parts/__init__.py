"""Parts that optimizers share, and learning-rate schedules.

``protocol.py``   what an optimizer is, the base class of those here, checks of settings; entries without weight
                  decay or with their own rate, and loops over blocks that stay in a cache; loss scaling in float16
``schedules.py``  factor on the learning rate by (step, total steps), with warm-up and scaling by the batch
``lbfgs.py``      L-BFGS as a program of vector operations, whose vectors may be spread over servers

Flat vectors of parameters and gradients come in; parameters change in place, and nothing leaves.

The one rule: a rule acts on each entry alone, so that a server's shard and the whole vector get equal bits.
Rules that need norms of tensors declare ``whole_tensors``. Open ``protocol.py``, then ``hpcdl/optim/sgd.py``.
"""
