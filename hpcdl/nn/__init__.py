"""Neural networks on flat vectors.

A model is a list of layers without memory. A replica binds them to two vectors, ``parameters`` and
``gradients``, and to the kernels of a backend::

    layers (layers.py)  ──bind──>  bound layers  ──call──>  kernels/numpy, numba, cupy
                                      │
                        replica.parameters, replica.gradients: one vector each

Schemes sum spans of the gradients, optimizers change spans of the parameters, compressors read spans. Backward
reports each layer that is done, so that its span can leave while the rest is computed. The one rule: layers
compute, the fabric communicates. Files of this folder know no subfolder: what a replica needs of a divided layer,
the layer says itself. Open ``layer.py``, then ``replica.py``.
"""
