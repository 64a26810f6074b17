"""Prompt screening: normalises obfuscated text and applies rules by category. Prompts are never stored."""

from filmgate.admission.screening.decision import Screener
from filmgate.admission.screening.rules import RuleSet, open_rules

__all__ = ["RuleSet", "Screener", "open_rules"]
