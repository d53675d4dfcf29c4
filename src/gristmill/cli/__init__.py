"""The command line. Each command imports its rooms when it runs, so ``--help`` is instant."""

from gristmill.cli.main import cli, main

__all__ = ["cli", "main"]
