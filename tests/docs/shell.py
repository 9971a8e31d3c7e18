"""Commands as a page shows them to be typed, taken apart far enough to be tried."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_BETWEEN = re.compile(r"[|&;<>()]+")
_ASSIGNMENT = re.compile(r"\w+=.*")


@dataclass(frozen=True)
class Typed:
    """One program with its arguments; ``line`` is what stands on the page."""

    line: str
    program: str
    arguments: tuple[str, ...]

    def ours(self) -> tuple[str, ...] | None:
        """The arguments of ``neuron-plugin``, typed here or, behind ``--``, in a container."""
        if self.program == "neuron-plugin":
            return self.arguments
        _, _, inside = " ".join(map(shlex.quote, self.arguments)).partition(" -- neuron-plugin ")
        return tuple(shlex.split(inside)) if inside else None


def typed(text: str) -> Iterator[Typed]:
    """Every program that lines of shell would start, pipes and substitutions apart."""
    for line in text.replace("\\\n", " ").splitlines():
        words: list[str] = []
        before = ";"
        for word in [*_words(line), ";"]:
            if not _BETWEEN.fullmatch(word):
                words.append(word)
                continue
            while words and _ASSIGNMENT.fullmatch(words[0]):
                words.pop(0)
            if words and not before.startswith((">", "<<<")):  # behind those stand a file and a text
                yield Typed(line, words[0].removeprefix(".venv/bin/"), tuple(words[1:]))
            words, before = [], word


def _words(line: str) -> Iterator[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    return iter(lexer)
