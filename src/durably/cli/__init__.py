"""The command `durably`. It goes through the public API only."""

from durably.cli.entry import main

__all__ = ["main"]
