"""Station 7: encrypted objects. `base` has the port."""
