"""Timed runs: where the time of a collection goes, what speculation gains, what verifying costs, by backend.

Every comparison is interleaved within one run, and only ratios are compared: absolute times differ between machines
and hours. What to run comes from the caller; nothing here prints or parses.
"""
