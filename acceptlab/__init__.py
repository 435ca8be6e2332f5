"""acceptlab measures when a target model accepts what a draft model proposes in speculative decoding.

The command line is the main door (`acceptlab --help`). From Python, `acceptlab.pairs.load_pair` gives a pair of
models and `acceptlab.analysis` the tables. Nothing heavy is imported here.
"""

import os

# PyTorch reads it when it is first loaded: large tensors in huge pages, which Linux gives to those who ask. Weights and
# logits are read through at every pass, and address translation alone takes a sixth of that time without.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"
