"""Fixtures of other rooms."""

from tests.cli.conftest import cli

__all__ = ["cli"]
