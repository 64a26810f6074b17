"""Loading a model onto its device: families, limits, memory and compilation."""
