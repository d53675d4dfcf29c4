"""Memory of sequences: which block holds what (``blocks``), when the bytes grow (``pools``)."""
