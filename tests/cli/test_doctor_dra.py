from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.cli.doctor_facts import Facts, SocketSeen
from neuron_plugin.cli.doctor_findings import Level
from tests.cli.doctor_cases import is_fine, the_finding, with_kubelet

SOCKETS = [
    Path("/var/lib/kubelet/plugins_registry/neuron.aws.com-reg.sock"),
    Path("/var/lib/kubelet/plugins/neuron.aws.com/dra.sock"),
]


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize(
    ("served", "with_us", "level"), [(True, True, Level.PROBLEM), (True, False, Level.NOTE), (False, True, Level.NOTE)]
)
def test_the_dra_driver_is_a_problem_only_beside_us(
    well: Facts,
    path: Path,
    served: bool,  # noqa: FBT001 - a case
    with_us: bool,  # noqa: FBT001 - a case
    level: Level,
) -> None:
    ours = well.kubelet.plugins if with_us else ()
    finding = the_finding("dra-driver", with_kubelet(well, plugins=(*ours, SocketSeen(path, served=served))))
    assert finding.level is level
    assert "neuron.aws.com" in finding.seen


def test_without_it_all_is_fine(well: Facts) -> None:
    assert is_fine("dra-driver", well)
