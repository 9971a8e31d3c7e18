from __future__ import annotations

from tests.cli.conftest import cli, cli_process, short_directory

__all__ = ["cli", "cli_process", "short_directory"]
