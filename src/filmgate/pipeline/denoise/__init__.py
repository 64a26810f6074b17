"""Stage two: from embeddings to latents."""
