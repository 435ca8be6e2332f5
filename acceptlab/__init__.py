"""acceptlab measures when a target model accepts what a draft model proposes in speculative decoding.

The command line is the main door (`acceptlab --help`). From Python, `acceptlab.pairs.load_pair` gives a pair of
models and `acceptlab.analysis` the tables. Nothing heavy is imported here.
"""

__version__ = "0.1.0"
