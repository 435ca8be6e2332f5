"""Random streams that depend on what they are for, never on when they are asked for. NumPy only.

A stream is keyed by (seed, prompt, step, purpose), so the order of prompts, a resumed run and the number of
workers change nothing. Nothing else in the collector draws random numbers: the arithmetic takes its uniforms
as arguments.
"""

from __future__ import annotations

import hashlib

import numpy as np
from jaxtyping import Float64


def generator(seed: int, prompt_id: str, step: int, purpose: str) -> np.random.Generator:
    """A counter-based generator (Philox) whose 128-bit key is the hash of its four arguments.

    The fields are joined with their lengths, so that no two different keys read the same.
    """
    fields = (str(int(seed)), prompt_id, str(int(step)), purpose)
    text = "".join(f"{len(field)}:{field}," for field in fields)
    # an id may hold half of a surrogate pair (it comes from JSON), which plain UTF-8 refuses
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def uniforms(seed: int, prompt_id: str, step: int, purpose: str, n: int) -> Float64[np.ndarray, " n"]:
    """The first n uniforms of a stream, in [0, 1).

    Args:
        seed: the run's seed.
        prompt_id: the prompt's id as its file gives it.
        step: draft-and-verify round, from 0.
        purpose: what they are for. Drafting and verifying must differ here: a lossless rule is lossless
            because the two are independent.
        n: how many. A longer request begins with the same numbers.
    """
    return generator(seed, prompt_id, step, purpose).random(n)
