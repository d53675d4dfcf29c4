"""Measurements: of any server over HTTP (``online``), of the engine alone (``offline``)."""
