"""Layers: structure, shapes and parameters without arithmetic; one kind of layer per file.

A layer is a description without memory. It answers three questions about inputs of a shape
(:class:`hpcdl.nn.layer.Layer`)::

    output(shape)      shape of the outputs; ValueError, which names the layer, if there are none
    declare(shape)     variables: name, shape, initial values, weight decay, factor on the learning rate
    bind(shape, site)  the bound layer, which has kernels of the site's backend and views of the flat vectors

So one list of layers serves to train, to count bytes (``volumes.py``) and to simulate. ``alone`` of a class says
which positions it treats independently, so that ranks can have some each (``split/``).

The one rule: no layer computes. Its op comes from the backend, by a geometry. Open ``affine.py`` first;
``composite.py`` has layers of layers.
"""
