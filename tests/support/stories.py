"""Stories: what happens to a scene, step by step, as one line of text that a table can have as a row."""

from __future__ import annotations

import asyncio
from textwrap import dedent

import pytest


def rows(table: str) -> list[pytest.ParameterSet]:
    """The rows of a table for ``parametrize``, each as ``what it proves: text => text``, a column each.

    A line that is indented goes on with the row before, and one that begins with ``#`` is a comment.
    """
    lines: list[str] = []
    for line in dedent(table).strip().splitlines():
        if line.startswith(" "):
            lines[-1] += f" {line.strip()}"
        elif line and not line.startswith("#"):
            lines.append(line)
    made = []
    for line in lines:
        title, _, text = line.partition(":")
        columns = f" {text} ".replace("=> =>", "=>  =>").split(" => ")
        made.append(pytest.param(*map(str.strip, columns), id=title))
    return made


class Scene:
    """What a story is about. Each verb of its steps is a method, which takes the step's other words as one text."""

    _last_took = 0.0

    async def play(self, steps: str) -> None:
        """Do the steps, such as ``"serve; wait 5; held yes"`` or ``"prefer 4 -> 0-3"``, of which the rest is expected.

        A step that fails is named in the error.
        """
        loop = asyncio.get_running_loop()
        for number, step in enumerate(steps.split("; ")):
            asked, arrow, expected = step.partition(" -> ")
            verb, _, text = asked.partition(" ")
            began = loop.time()
            try:
                result = getattr(self, verb)(*([text] if text else []), *([expected] if arrow else []))
                if asyncio.iscoroutine(result):
                    await result
            except Exception as error:
                error.add_note(f"step {number} of {steps!r}: {step}")
                raise
            if verb != "took":
                self._last_took = loop.time() - began

    async def wait(self, seconds: str) -> None:
        await asyncio.sleep(float(seconds))

    def took(self, expected: str) -> None:
        """How many seconds the last step took, at least and at most."""
        least, most = map(float, expected.split("-"))
        assert least <= self._last_took <= most, self._last_took
