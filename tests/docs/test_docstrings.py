"""A sentence of a docstring has 30 words at most: a longer one is two."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "neuron_plugin"
ROOMS = ("allocation", "cli", "hardware", "inspection", "kubelet", "placement", "planning", "simulation", "topology")
MOST_WORDS = 30


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Every text that stands alone: docstrings, and the texts below constants and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def sentences(text: str) -> Iterator[str]:
    for part in re.split(r"\n\s*\n|\n\s*[-*] |:\n", text):
        yield from re.split(r"(?<=[.!?])\s+(?=[A-Z`\"(])", " ".join(part.split()))


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_is_longer_than_thirty_words(room: str) -> None:
    files = [file for file in (PACKAGE / room).rglob("*.py") if "_proto" not in file.parts]
    assert files
    long = [
        f"{file.relative_to(PACKAGE)}: {sentence}"
        for file in files
        for text in docstrings(ast.parse(file.read_text(encoding="utf-8")))
        for sentence in sentences(text)
        if len(sentence.split()) > MOST_WORDS
    ]
    assert long == []
