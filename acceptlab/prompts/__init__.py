"""Prompts: find, load, validate, hash and number them. No tokenizing, no templates, no models."""

from __future__ import annotations

from acceptlab.prompts.loading import load_prompts, read_prompts
from acceptlab.prompts.prompt import DOMAINS, UNLABELLED, Columns, Problem, Prompt, sha256
from acceptlab.prompts.shipped import SHIPPED_SET, shipped_folder

__all__ = [
    "DOMAINS",
    "SHIPPED_SET",
    "UNLABELLED",
    "Columns",
    "Problem",
    "Prompt",
    "load_prompts",
    "read_prompts",
    "sha256",
    "shipped_folder",
]
