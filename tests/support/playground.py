"""A playground as a process of its own, in a short directory, with what it prints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import yaml

REPOSITORY = Path(__file__).parents[2]
SECONDS = 150.0


class Playground:
    """A context: it is ready inside and ended after it."""

    def __init__(self, *arguments: str, directory: Path | None = None, in_tmpdir: bool = False) -> None:
        """``in_tmpdir`` gives its directory the name that commands look for in TMPDIR."""
        name = "neuron-playground" if in_tmpdir else "p"
        self.directory = directory or Path(tempfile.mkdtemp(prefix="np-", dir="/tmp")) / name
        self._output = Path(tempfile.mkdtemp(prefix="np-printed-")) / "printed"
        self._environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONIOENCODING": "utf-8"}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                self._command(*arguments), stdout=output, stderr=output, env=self._environment, start_new_session=True
            )

    def __enter__(self) -> Self:
        self.wait_for("Ready after")
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(SECONDS)
        shutil.rmtree(self._output.parent)
        if self.directory.parent.name.startswith("np-"):
            shutil.rmtree(self.directory.parent)

    def _command(self, *arguments: str) -> list[str]:
        where = ("--directory", str(self.directory))
        return [sys.executable, "-m", "neuron_plugin", "playground", *where, *arguments]

    def printed(self) -> str:
        """All that it has printed."""
        return self._output.read_text("utf-8")

    def wait_for(self, text: str) -> None:
        """Wait until it has printed a text."""
        self.wait_for_match(re.escape(text))

    def wait_for_match(self, pattern: str) -> None:
        """Wait until it has printed what matches a pattern, which may go over lines."""
        ends, compiled = time.monotonic() + SECONDS, re.compile(pattern, re.DOTALL)
        while not compiled.search(self.printed()):
            assert self.process.poll() is None or compiled.search(self.printed()), self.printed()
            assert time.monotonic() < ends, self.printed()
            time.sleep(0.05)

    def run(self, *arguments: str, status: int = 0) -> str:
        """What another shell's ``playground ...`` prints."""
        return self._done(self._command(*arguments), status)

    def clear(self) -> None:
        """Delete all pods, and wait until they are gone and the plugins say so."""
        while found := _answer(self._all_pods)["items"]:
            for pod in found:
                metadata = pod["metadata"]
                path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
                with contextlib.suppress(HTTPError):  # it is gone already
                    _answer(self._all_pods.replace("/api/v1/pods", path), "DELETE")
            time.sleep(0.2)
        self.wait_until_freed()

    def wait_until_freed(self) -> None:
        """Wait until the plugins have said that what deleted pods had is free."""
        found = re.search(r"In a browser: (http://[^/]+)/", self.printed())
        assert found, self.printed()
        url, ends = f"{found[1]}/apis/neuron-plugin.io/v1/neuronnodes", time.monotonic() + SECONDS
        while gone := (self._holders(url) - self._pods()) | self._kept(url):
            assert time.monotonic() < ends, gone
            time.sleep(0.1)

    @staticmethod
    def _kept(url: str) -> set[str]:
        """For whom something is kept; of a group that is gone for a moment only."""
        return {kept["pod"] for node in _answer(url)["items"] for kept in node["status"].get("reserved", ())}

    @property
    def _all_pods(self) -> str:
        config = yaml.safe_load((self.directory / "kubeconfig").read_text("utf-8"))
        return f"{config['clusters'][0]['cluster']['server']}/api/v1/pods"

    def _pods(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in _answer(self._all_pods)["items"]}

    @staticmethod
    def _holders(url: str) -> set[str]:
        return {pod["uid"] for node in _answer(url)["items"] for pod in node["status"].get("holders", ())}

    def shell(self, line: str) -> str:
        """What a line prints that is typed into another shell."""
        return self._done(["/bin/sh", "-c", line], 0)

    def _done(self, command: list[str], status: int) -> str:
        done = subprocess.run(  # noqa: S603 - our own program, or a line of a test
            command, env=self._environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


def _answer(url: str, method: str = "GET") -> Any:
    """What the playground's API server says; it serves on loopback, and everybody."""
    with urlopen(Request(url, method=method), timeout=SECONDS) as answer:  # noqa: S310 - as the kubeconfig says
        return json.load(answer)
