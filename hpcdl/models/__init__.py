"""Networks, one per file: ``name(shape, classes)`` returns a list of layers."""
