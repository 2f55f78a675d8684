"""Carry a deep-learning project to a GPU server without a network, and prove that it trains."""

from __future__ import annotations

__version__ = "0.1.0"
