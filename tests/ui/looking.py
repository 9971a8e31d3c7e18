"""What tests of the page look at: a cluster of three nodes, and expressions that find its parts in a browser."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation import Resource
from tests.support.world import World

BROWSER_TESTS = [pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]
"""Marks of a module whose tests take a tab."""

TRN1, INF2 = "trn1.32xlarge", "inf2.48xlarge"
DEVICE, CORE = Resource.NEURON, Resource.NEURONCORE
NAMES = "[...document.querySelectorAll('#nodes li:not([hidden])')].map(each => each.dataset.node).join()"
ALL_SHOWN = "document.querySelectorAll('#nodes .device').length === 44"
"""Of the nodes of ``small``."""


def small() -> World:
    world = World()
    world.node("trn1-a", TRN1, unhealthy={9: "uncorrected ECC errors: 1"}, missing=[15])
    world.node("trn1-b", TRN1)
    world.node("inf2-a", INF2)
    world.held("train", "trn1-a", DEVICE, "0,1,2,3")
    world.held("serve", "trn1-a", CORE, "8")
    return world


def card(node: str) -> str:
    return f'document.querySelector(`.card[href="#node/{node}"]`)'


def device(node: str, number: int) -> str:
    return f"{card(node)}?.querySelector('[data-device=\"{number}\"] .device')"


def fill(node: str, pod: str) -> str:
    """What a pod's set is filled with."""
    return f"{card(node)}?.querySelector('.set[data-pod=\"{pod}\"]')?.style.fill"


def marked(node: str) -> str:
    """The marks that lie over devices: the state, and the device whose place they have."""
    return f"""[...{card(node)}.querySelectorAll('.mark')].map((each) => each.classList[1] + " " +
        [...{card(node)}.querySelectorAll('.frame')].findIndex((frame) => each.getAttribute('transform') ===
        `translate(${{Number(frame.getAttribute('x')) + 20}} ${{Number(frame.getAttribute('y')) + 20}})`))"""


def with_text(selector: str, text: str) -> str:
    return f"[...document.querySelectorAll('{selector}')].find((each) => each.textContent.includes('{text}'))"
