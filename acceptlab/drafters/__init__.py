"""Small drafters trained on a target: their architecture, their files, and running them as a language model.

Torch only. Training them is in `acceptlab.training`; `acceptlab.pairs` loads them as drafts.
"""
