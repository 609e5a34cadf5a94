"""Compressors of messages: one compressor, one file."""
