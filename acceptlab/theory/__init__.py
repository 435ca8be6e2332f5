"""Divergences, certificates and accepted-length estimators: pure float64 arithmetic on numpy arrays.

No models, no files, no run; nothing here imports torch. Logarithms are natural and every divergence is in
nats.
"""
