"""The server: one ASGI app, one file per dialect. Knows the engine only by its protocol."""
