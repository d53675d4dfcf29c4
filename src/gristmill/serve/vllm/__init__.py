"""The routes that only vLLM has."""
