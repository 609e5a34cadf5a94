"""Networks, one per file; the function of that name, with (shape, classes), returns a list of layers."""
