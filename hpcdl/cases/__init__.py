"""Kinds of case. One kind, one file: its keys, its checks, and the program that every rank runs."""
