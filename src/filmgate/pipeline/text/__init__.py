"""Stage one: from prompts to embeddings."""
