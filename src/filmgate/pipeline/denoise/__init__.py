"""Stage two: embeddings to latents."""
