"""Documents for scripts: the flag ``--output``, and JSON and YAML as every command prints them.

A document is a promise: within its ``version`` keys are added, and none is renamed or taken away. They are listed in
``docs/command-line.md``, and a test holds that to the code.
"""

from __future__ import annotations

import enum
from argparse import ArgumentParser

import msgspec


class Form(enum.StrEnum):
    """What ``--output`` takes, wherever a command has nothing more to offer."""

    TEXT = "text"
    """For people."""
    JSON = "json"
    YAML = "yaml"


class ObjectForm(enum.StrEnum):
    """What ``--output`` takes where the output is Kubernetes objects."""

    YAML = "yaml"
    JSON = "json"


def add_output_flag(parser: ArgumentParser, forms: type[enum.StrEnum] = Form, *, told: str = "") -> None:
    """Add ``-o``, ``--output``; the first of ``forms`` is the default. ``told`` says more of them than their names."""
    names = [form.value for form in forms]
    text = told or f"{', '.join(names[:-1])} or {names[-1]}"
    parser.add_argument(
        "-o", "--output", choices=names, default=names[0], metavar="FORM", help=f"{text} (default: {names[0]})"
    )


def document(form: enum.StrEnum, content: object) -> str:
    """``content`` as JSON or YAML, with a newline at its end: plain values, or a msgspec Struct."""
    if form == Form.JSON:
        return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"
    import yaml

    return str(yaml.safe_dump(msgspec.to_builtins(content), sort_keys=False))
