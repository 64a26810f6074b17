"""Room 1: HTTP. The OpenAI Videos API and Filmgate's additions."""
