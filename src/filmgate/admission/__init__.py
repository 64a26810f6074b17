"""Station 2: may this enter? Validate, screen, estimate, and keep the promise to those already waiting."""
