"""Settings of the whole suite: one thread a process, since two busy torch processes slow each other tenfold."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# a loaded machine is no failure: examples may take as long as they need, the timeout of a test stays
settings.register_profile("acceptlab", deadline=None)
settings.load_profile("acceptlab")
