"""Checks that a verifier is lossless, and broken verifiers that the checks must catch.

`exact` enumerates everything on small vocabularies; `controls` holds verifiers that break one thing each.
"""
