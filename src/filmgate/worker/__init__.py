"""Station 5: lease, render, store, acknowledge. `base` has the Runner protocol."""
