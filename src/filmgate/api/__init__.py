"""Station 1: HTTP only. The OpenAI Videos contract, and what Filmgate offers beside it."""
