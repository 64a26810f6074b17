"""Stage one: prompts to embeddings."""
