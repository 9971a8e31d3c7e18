"""Timing, servers in processes of their own, and the floor that filter stands beside."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from neuron_plugin.allocation import Resource
from neuron_plugin.telemetry import LogFormat, LogLevel, start_logging
from tests.support.manifests import pod_manifest

ROUNDS = 200


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of CPU: other work on the machine does not count."""
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1000


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of the others lies."""
    return sorted(values)[int(len(values) * share)]


def seeded(number: int) -> random.Random:
    """Chance that is the same in every run."""
    return random.Random(number)


def log_to_nowhere() -> None:
    """Write the lines that a running extender writes, where they disturb nobody."""
    nowhere = Path(os.devnull).open("w", encoding="ascii")  # noqa: SIM115 - open as long as the process lives
    start_logging(LogFormat.JSON, LogLevel.INFO, nowhere)


CONSTRAINTS = {"neuron-plugin.io/device-name": "trn1,trn2", "neuron-plugin.io/allow-devices": "0-15"}
"""What narrows nothing, so that the same nodes pass."""


def filter_body(names: list[str], devices: int = 4, annotations: Mapping[str, str] | None = None) -> bytes:
    """What kube-scheduler sends for a pod of so many devices."""
    pod = pod_manifest("new", Resource.NEURON, devices, annotations=annotations)
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


class _Args(msgspec.Struct):
    Pod: msgspec.Raw
    NodeNames: list[str]


_floor_decoder = msgspec.json.Decoder(_Args)


def echo(body: bytes, answer: dict[str, Any] | None = None) -> bytes:
    """The floor: every byte in and out, nothing decided; the names that came, or that answer."""
    args = _floor_decoder.decode(body)
    answer = answer or {"NodeNames": args.NodeNames, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""}
    return msgspec.json.encode(answer)


async def latencies(url: str, body: bytes, rounds: int = ROUNDS) -> list[float]:
    """Milliseconds of each of many calls on one connection."""
    found = []
    async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
        for _ in range(rounds):
            started = time.perf_counter()
            async with session.post(url, data=body) as response:
                await response.read()
            found.append((time.perf_counter() - started) * 1000)
    return found[5:]


@contextmanager
def served(target: Callable[[Connection, Any], None], argument: object) -> Iterator[Any]:
    """A server in a process of its own; gives what it reports first: its port, its kubeconfig or its figures."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, argument), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()
