"""Loading a model onto its device: families, limits and memory."""
