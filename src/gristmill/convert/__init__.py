"""Model files made of model files: any weights as GGUF, in any encoding; and how good they are."""
