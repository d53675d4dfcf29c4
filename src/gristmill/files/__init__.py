"""Model files: any source → a ``Checkpoint`` of mapped tensors with its metadata."""

from gristmill.files.gguf import open_gguf
from gristmill.files.opening import open_model

__all__ = ["open_gguf", "open_model"]
