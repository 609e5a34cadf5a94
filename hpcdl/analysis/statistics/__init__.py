"""Statistics: intervals and tests of a few values, which know no run.

In come vectors: steps of a launch, medians of launches, logarithms of times. Out come an ``Interval``
(value and 95 % bounds) or p values, adjusted for the number of comparisons. Distributions are those of scipy,
imported late: ranks do not need it.

The one rule: what the data cannot say is NaN, never a guess. One launch has no interval over launches.

``judging.py`` has the one rule for two sides, and compares times that may not have been reached; open it first.
``estimates.py`` has medians and means with intervals, and values of many series without outliers and common
effects. ``differences.py`` tests many measures at once, whose few launches lend each other their variance.
"""
