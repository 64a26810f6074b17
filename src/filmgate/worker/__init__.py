"""Room 4: lease, render, store, acknowledge. `base` has the Runner protocol."""
