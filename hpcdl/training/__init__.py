"""Ways of training one network on many ranks. One strategy, one file."""
