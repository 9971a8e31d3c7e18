from __future__ import annotations

import pytest

from tests.extender.world import World


@pytest.fixture
def world() -> World:
    return World()
