"""Practical advice from a user's own case: model, GPU, lengths and objectives."""

from __future__ import annotations

from sieve.advice.advise import advise
from sieve.advice.words import Advice, Figure

__all__ = ["Advice", "Figure", "advise"]
