"""The OpenAI dialect, with the extra fields of vLLM and llama-server."""
