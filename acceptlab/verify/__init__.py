"""Verification rules: which drafted tokens the target accepts, and what it emits after them.

Pure arithmetic: uniforms are passed in, nothing is mutated, no model, random state or file.
"""

from acceptlab.pairing import ProposalKind, check_pairing, proposal_for
from acceptlab.verify.decide import accept_probs, emission, verify
from acceptlab.verify.drafted import Drafted, Target, Verdict
from acceptlab.verify.target import read_target

__all__ = [
    "Drafted",
    "ProposalKind",
    "Target",
    "Verdict",
    "accept_probs",
    "check_pairing",
    "emission",
    "proposal_for",
    "read_target",
    "verify",
]
