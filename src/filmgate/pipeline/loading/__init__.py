"""Loading a model onto its device: families, limits, memory, compilation and quality levels."""
