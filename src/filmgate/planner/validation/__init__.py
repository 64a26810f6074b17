"""Fits constants to published and measured runs, and predicts each run from the others."""
