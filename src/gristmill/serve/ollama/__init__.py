"""The Ollama dialect: ``/api/…``, streams of one JSON object a line."""
