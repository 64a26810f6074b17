"""Prompt screening: see through disguises, apply rules by category; keep the decision, never the prompt."""

from filmgate.admission.screening.decision import Screener
from filmgate.admission.screening.rules import RuleBook, open_rules

__all__ = ["RuleBook", "Screener", "open_rules"]
