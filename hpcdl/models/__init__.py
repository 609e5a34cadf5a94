"""Networks, one per file or family: the function of that name, with (shape, classes), returns a list of layers.

``lenet5((28, 28, 1), 10)`` describes the network and allocates nothing. Keyword-only parameters are settings of
a suite. The docstring states the source, what differs from it, and the number of parameters, which tests count.

Names of layers matter: initial values are drawn from a layer's name and the seed, and traces and reports show
them.

The one rule: sizes, initial values and factors on the learning rate are those of the paper or of its authors'
files; what a paper doesn't state is named as a choice. Open ``caffe.py`` first.
"""
