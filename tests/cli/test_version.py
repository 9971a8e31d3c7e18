from __future__ import annotations

import json
import platform
from pathlib import Path

import grpc
import yaml

from neuron_plugin import __version__
from tests.cli.doubles import Cli
from tests.inspection.doubles import MakeNode


def test_it_names_the_program_python_and_the_driver(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.xlarge", driver_version="2.26.5.0")
    assert cli("version", "--root", node.root).out.splitlines() == [
        f"neuron-plugin {__version__}, revision unknown",
        f"Python {platform.python_version()}, gRPC {grpc.__version__}",
        "Neuron driver 2.26.5.0",
    ]


def test_no_driver_is_fine_here(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.xlarge")
    node.unload_driver()
    shown = cli("version", "--root", node.root)
    assert shown.status == 0
    assert shown.out.splitlines()[-1] == "Neuron driver not found"


def test_json_has_null_for_a_driver_that_is_not_there(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.xlarge", driver_version="2.26.5.0")
    assert json.loads(cli("version", "-o", "json", "--root", node.root).out) == {
        "neuronPlugin": __version__,
        "revision": "unknown",
        "python": platform.python_version(),
        "grpc": grpc.__version__,
        "driver": "2.26.5.0",
    }
    node.unload_driver()
    assert json.loads(cli("version", "-o", "json", "--root", node.root).out)["driver"] is None
    assert yaml.safe_load(cli("version", "-o", "yaml", "--root", node.root).out)["driver"] is None


def test_a_root_that_is_no_directory_is_refused(cli: Cli) -> None:
    shown = cli("version", "--root", "/nowhere")
    assert (shown.status, shown.out) == (2, "")
    assert "/nowhere is no directory" in shown.err


def test_the_extender_s_settings_in_the_usual_place_do_not_hide_the_versions(cli: Cli, usual_file: Path) -> None:
    usual_file.write_text("tls-cert: /tls.crt\n")
    assert cli("version").status == 0
    assert cli("version", "--config", usual_file).status == 2
