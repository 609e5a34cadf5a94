"""Parts that optimizers share, and learning-rate schedules.

Flat vectors of parameters and gradients come in; parameters change in place, and nothing leaves. Rules that need
norms of tensors declare ``whole_tensors``. Open ``protocol.py``, then ``hpcdl/optim/sgd.py``.
"""
