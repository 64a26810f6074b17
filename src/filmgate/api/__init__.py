"""HTTP: the OpenAI Videos API and Filmgate's additions."""
