"""What a model is: its limits and card, the cache of its weights, and the models in the package."""
