"""Parts that compressors share: their protocols, the selection of entries, and messages.

``protocol.py``   protocols of compressors and of entropy codes (``codes/``); layout, segments, checks
``selection.py``  the largest entries by a sampled threshold, and their messages: positions, then signs or values

Vectors come in and stay where the gradient is, on the host or on a GPU; messages leave as bytes on the host.
What is not sent stays in the vector: sent + rest = input, which tests check for every compressor.

The one rule: a message is checked completely before it is believed; ValueError, never a wrong gradient.
Open ``protocol.py`` first.
"""
