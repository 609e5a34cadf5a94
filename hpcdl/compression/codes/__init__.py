"""Entropy codes of sequences of non-negative integers.

A sparse gradient's positions become gaps, and gaps become bytes::

    positions 7, 9, 30 ──gaps──> 7, 1, 20 ──code.encode──> bytes ──code.decode──> 7, 1, 20

Gaps of a random selection are small and of a known mean, so that a few bits per entry are enough: ``rice`` fits
one parameter to the mean, ``elias`` needs none, ``huffman`` sends a table of the values that occur, ``words``
takes 32 bits for position and sign, as its paper does.

The one rule: a message comes from another rank, so a decoder checks it, and a code's ``bound`` is never
exceeded, since buffers have that size. The bits are written by compiled kernels (``kernels/integer_codes.py``).
"""
