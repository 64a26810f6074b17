"""Managed providers: disabled, any OpenAI-compatible endpoint, Amazon Bedrock."""
