"""Ways of making what is exchanged smaller. One compressor, one file."""
