"""Prompt screening: which categories a prompt belongs to, and what the tenant wants done. No text is kept."""

from filmgate.admission.screening.decision import Screener, TimeBox
from filmgate.admission.screening.rules import RuleSet, open_rules

__all__ = ["RuleSet", "Screener", "TimeBox", "open_rules"]
