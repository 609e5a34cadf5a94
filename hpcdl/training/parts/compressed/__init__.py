"""Exchange of compressed gradients: a sum over ranks of which each rank sends less than its gradient.

In comes a piece of the flat gradient. Out comes its sum over all ranks, or nearly: what a rank did not send stays
in its residual and is added to its next gradient (error feedback)::

    gradient + residual  -- compressor -->  vectors, entries or messages  -- exchange -->  sum
                                   residual  <-  what was not sent

The compressor's product decides the exchange. Vectors are summed by any scheme. Entries, positions with values,
are summed by a scheme for entries, or sent as messages. Messages go to all ranks, or to servers that sum their
slices and send them back compressed again, with a second residual.

The one rule: sent + residual = gradient + earlier residual, on every rank and for every element. Open ``plan.py``
first, which chooses the exchange of a case.
"""
