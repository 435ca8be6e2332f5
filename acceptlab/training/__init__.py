"""Training text, losses, drafters and the trainer.

The target writes the text (`generate`), drafters (`drafters`) are fitted to it (`train`) with any of the
objectives of `losses`. Nothing here collects or analyses runs.
"""
