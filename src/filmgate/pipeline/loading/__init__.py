"""Models on a device: families, memory, compilation and quality levels."""
