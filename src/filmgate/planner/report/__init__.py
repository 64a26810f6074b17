"""Renders an answer as tables, a decision record or a page, and a validation as Markdown."""
