"""gristmill: serve a language model from any weights, to one user or a hundred."""

__version__ = "0.1.0"
