"""Keys of a suite, and specifications of cases."""
