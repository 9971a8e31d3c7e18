from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.hardware import ResetState
from neuron_plugin.inspection.facts import ClusterFacts, Daemon, Facts, NodeFile
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.plugin.health import Action, HealthRules, SignalRule, judge_once
from neuron_plugin.simulation import SimulatedNode
from tests.inspection.cases import ask, expect, facts_of, with_host
from tests.inspection.doubles import MakeNode

INF2 = "inf2.24xlarge"
MACHINES = {
    # The driver.
    "a driver that is not loaded": ("driver", f"{INF2}; unload", "problem: not loaded ~ modprobe neuron"),
    "its chips are on the PCI bus": (
        "driver",
        f"{INF2}; unload; pci Trainium1 2",
        "problem: though the PCI bus has 2 Trainium1 chips",
    ),
    "no chip is on the PCI bus": ("driver", f"{INF2}; unload; pci - 0", "problem: the PCI bus has no Neuron chip"),
    "a fault of products that are not here is not reported, one of Inf1 is": (
        "driver",
        "inf1.xlarge",
        "note: can crash the kernel ~ no newer driver supports Inf1",
    ),
    "inf1 chips with a driver that dropped them": ("driver", "trn1.32xlarge; pci Inferentia 1", "problem: 2.24"),
    "inf1 chips with a driver that knows them": ("driver", "inf1.xlarge; pci Inferentia 1", "note: "),
    "a version that cannot be read": ("driver", f"{INF2}; file module/neuron/version -", "warning: host numbers"),
    # Devices and cores.
    **{
        f"a complete {kind}": ("devices", kind, f"ok: {kind}")
        for kind in ("inf1.6xlarge", INF2, "trn1.2xlarge", "trn2.3xlarge")
    },
    "a missing chip": ("devices", "trn1.32xlarge missing 3", "problem: neuron3 is missing ~ trn1.32xlarge has 16"),
    "several missing chips": ("devices", "trn1.32xlarge missing 3,4,9", "problem: devices 3-4,9 are missing"),
    "an unknown type, and what is lost by that": (
        "devices",
        "trn1.2xlarge; file class/dmi/id/product_name trn9.48xlarge",
        "note: trn9.48xlarge is not known ~ --instance-types",
    ),
    "a device that cannot be used": ("devices", f"{INF2}; set 5 core_count many", "problem: neuron5 ~ 'many'"),
    "a driver without devices": ("devices", "trn1.2xlarge missing 0", "problem: lists no device"),
    "devices without the driver": ("devices", "trn1.2xlarge; unload", "unchecked: "),
    "one chip more on the bus than the driver lists": (
        "devices",
        "trn1.32xlarge; pci Trainium1 17",
        "problem: has 17 Neuron chips, the driver lists 16",
    ),
    "as many chips on the bus": ("devices", "trn1.32xlarge; pci Trainium1 16", "ok"),
    "the usual size of a logical core": ("logical-cores", "trn2.3xlarge", "ok: LNC 2 (hardware default)"),
    "one that the host sets": ("logical-cores", "trn2.3xlarge lnc 1", "ok: LNC 1 (logical_nc_config)"),
    **{
        f"a size that is none: {text}": (
            "logical-cores",
            f"trn2.3xlarge lnc 1; lnc {text}",
            "warning: 2 is used instead ~ /logical_nc_config",
        )
        for text in ("NEURON_LOGICAL_NC_CONFIG=4", "NEURON_LOGICAL_NC_CONFIG=3", "two")
    },
    "such a size is reported once": ("sysfs", "trn2.3xlarge lnc 1; lnc two", "ok"),
    # Health.
    **{
        f"{spoil}": ("health", f"{INF2}; {spoil}", expected.replace(": ", ": neuron4: ~ ", 1))
        for spoil, expected in {
            "ecc 4 memory=1": "problem: 1 uncorrected memory error ~ replace the instance",
            "ecc 4 sram=2": "problem: 2 uncorrected SRAM errors ~ replace the instance",
            "ecc 4 repairable=1": "warning: 1 repairable ~ reboot",
            "reset 4 FAILED": "problem: reset failed ~ reset it again",
            "reset 4 RESETTING": "note: under way ~ dmesg",
            "components 4 hbm": "problem: hbm ~ replace the instance",
        }.items()
    },
    "a missing node is left to its own check": ("health", f"{INF2}; gone 2", "ok"),
    "p67 what only the daemon knows of a device": (
        "health",
        f"{INF2}; ecc 2 sram=1; daemon 1,2,40",
        (
            "problem: neuron2: 1 uncorrected SRAM error | "
            "problem: the daemon reports device 1 unhealthy, and sysfs shows no error"
        ),
    ),
    # Nodes and sysfs.
    "missing nodes": ("device-nodes", f"{INF2}; gone 1; gone 2; gone 5", "problem: /dev/neuron1-2,5"),
    "one broken attribute of several devices is one line": (
        "sysfs",
        f"{INF2}; {'; '.join(f'set {device} info/serial_number none' for device in (2, 3, 5))}",
        "warning: /neuron2-3,5/info/serial_number reads 'none",
    ),
    "attributes that an old driver cannot have": ("sysfs", "trn1.2xlarge driver_version 2.13.3.0", "ok"),
    "an attribute that a driver does not make": (
        "sysfs",
        f"{INF2}; set 2 info/architecture/arch_type -",
        "note: /neuron2/info/architecture/arch_type does not exist; NDv3 is assumed",
    ),
    "a masked core": ("sysfs", "trn1.2xlarge; masked", "warning: dev_nc_map"),
    **{
        f"{name} without a device": (name, f"{INF2}; unload", "unchecked: ")
        for name in ("sysfs", "logical-cores", "health")
    },
}
"""A check; a machine, and what is done to it; what the check finds, as `expect` reads it."""


def facts_after(make_node: MakeNode, text: str) -> Facts:
    """What is seen of a machine such as ``trn1.32xlarge missing 3; ecc 4 memory=1; pci Trainium1 16``."""
    kind, *spoils = text.split("; ")
    kind, *options = kind.split(" ")
    given: dict[str, Any] = dict(zip(options[::2], options[1::2], strict=True))
    if "missing" in given:
        given["missing"] = tuple(map(int, given["missing"].split(",")))
    if "lnc" in given:
        given["logical_core_size"] = int(given.pop("lnc"))
    node = make_node(kind, **given)
    later: list[Callable[[Facts], Facts]] = []
    for spoil in spoils:
        later += spoiled(node, *spoil.split(" "))
    facts = facts_of(node)
    for change in later:
        facts = change(facts)
    return facts


def spoiled(node: SimulatedNode, verb: str, *words: str) -> list[Callable[[Facts], Facts]]:
    """Do something to a machine; what has to be done to the facts about it afterwards."""
    match verb, words:
        case "unload", ():
            node.unload_driver()
        case "file", (name, text):
            path = node.paths.sysfs / name
            path.unlink()
            if text != "-":
                path.write_text(f"{text}\n")
        case "lnc", (text,):
            node.paths.logical_nc_config.write_text(f"{text}\n")
        case "set", (device, name, text):
            node.set_attribute(int(device), name, None if text == "-" else text)
        case "ecc", (device, errors):
            kind, _, count = errors.partition("=")
            node.set_ecc(int(device), **{kind: int(count)})
        case "reset", (device, state):
            node.set_reset(int(device), ResetState[state])
        case "components", (device, name):
            node.set_unhealthy_components(int(device), [name])
        case "gone", (device,):
            node.remove_node(int(device))
        case "masked", ():
            core = node.paths.sysfs / "devices/virtual/neuron_device/neuron0/neuron_core1"
            core.rename(core.with_name("elsewhere"))
        case "pci", (chip, count):
            return [lambda facts: with_host(facts, pci=(chip,) * int(count))]
        case "daemon", (unhealthy,):
            return [lambda facts: replace(facts, daemon=Daemon(unhealthy=tuple(map(int, unhealthy.split(",")))))]
        case _:
            raise AssertionError((verb, words))
    return []


@pytest.mark.parametrize(("name", "machine", "expected"), MACHINES.values(), ids=MACHINES)
def test_what_is_found_on_a_machine(make_node: MakeNode, name: str, machine: str, expected: str) -> None:
    expect(name, facts_after(make_node, machine), expected)


@pytest.mark.parametrize("name", ["driver", "devices", "health", "device-nodes", "sysfs", "disabled"])
def test_a_machine_on_which_all_is_well_is_fine(well: Facts, name: str) -> None:
    assert isinstance(well.host.pci, Unknown), "nothing is said of a bus that cannot be looked at"
    said = {"driver": "2.30.2.0", "device-nodes": " (plain files: simulated)"}
    expect(name, well, f"ok: {said.get(name, '')}")


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("2.12.13.0", "knows host numbers only (fixed in 2.12.14)"),
        ("2.13.3.0", "does not show which devices are linked"),
        ("2.26.4.9", "can crash the kernel"),
        ("2.26.5.0", "does not work with the Neuron runtime of SDK 2.32"),
    ],
)
def test_a_known_fault_is_reported_up_to_the_version_that_fixed_it(make_node: MakeNode, driver: str, said: str) -> None:
    findings = ask("driver", facts_of(make_node("trn1.2xlarge", driver_version=driver)))
    assert said in findings[0].seen
    assert all(finding.why and finding.action for finding in findings)


KNOWN = {"health-status/hw_error_events": 5}
JUDGED: dict[str, tuple[str, HealthRules, dict[str, int], str]] = {
    "the usual policy": ("ecc 4 sram=2", HealthRules(), {}, "problem: "),
    "below a threshold": ("ecc 4 sram=2", HealthRules(sram_ecc=SignalRule(threshold=3)), {}, "ok"),
    "ignored": ("ecc 4 sram=2", HealthRules(sram_ecc=SignalRule(action=Action.IGNORE)), {}, "ok"),
    "a warning": ("ecc 4 sram=2", HealthRules(sram_ecc=SignalRule(action=Action.WARN)), {}, "warning: "),
    "patience": ("ecc 4 sram=2", HealthRules(sram_ecc=SignalRule(for_seconds=60)), {}, "note: once this has lasted"),
    "errors that may be old": (
        "events 5",
        HealthRules(),
        {},
        "warning: 5 errors in health_status/hw_error_events, which may be old",
    ),
    "errors that the daemon has accepted": ("events 5", HealthRules(), KNOWN, "ok"),
    "errors that came since": (
        "events 5",
        HealthRules(),
        {name: count - 1 for name, count in KNOWN.items()},
        "warning: 4 of them old",
    ),
}
"""Errors of device 4, the daemon's policies, what it has accepted, and what is found."""


@pytest.mark.parametrize(("errors", "rules", "accepted", "expected"), JUDGED.values(), ids=JUDGED)
def test_the_daemons_policies_and_memory_decide_what_a_signal_means(
    make_node: MakeNode, errors: str, rules: HealthRules, accepted: dict[str, int], expected: str
) -> None:
    node = make_node(INF2)
    verb, *words = errors.split(" ")
    if verb == "events":
        node.set_error_events(4, int(words[0]))
    else:
        spoiled(node, verb, *words)
    facts = facts_of(node)
    key = facts.machine.inventory.devices[4].serial_number
    verdicts = judge_once(facts.machine.inventory, rules, {key: accepted} if accepted else {})
    expect("health", replace(facts, machine=replace(facts.machine, verdicts=verdicts)), expected)


def real(well: Facts, *nodes: NodeFile, **host: Any) -> Facts:
    """Two devices with real character devices, some of them replaced."""
    usual = {device: NodeFile(device, is_character=True, mode=0o666, numbers=(243, device)) for device in range(2)}
    found = usual | {node.device: node for node in nodes}
    seen = {"simulated": False, "nodes": tuple(found.values()), "numbers": {0: (243, 0), 1: (243, 1)}}
    return with_host(well, **{**seen, **host})


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (NodeFile(1, is_character=True, mode=0o666, numbers=(243, 1)), "ok"),
        (NodeFile(1, is_character=False, mode=0o666), "problem: neuron1 ~ is no character device"),
        (NodeFile(1, is_character=True, mode=0o666, numbers=(248, 1)), "problem: neuron1 ~ other numbers"),
        (NodeFile(1, is_character=True, mode=0o666, numbers=(243, 7)), "problem: neuron1 ~ other numbers"),
        (NodeFile(1, is_character=True, mode=0o600, numbers=(243, 1)), "warning: neuron1 ~ mode 0600, expected 0666"),
        (NodeFile(1, is_character=True, mode=0o664, numbers=(243, 1)), "warning: neuron1 ~ mode 0664, expected 0666"),
        (NodeFile(5, is_character=True, mode=0o666, numbers=(243, 5)), "warning: neuron5 ~ lists no such device"),
    ],
)
def test_a_wrong_node_is_reported(well: Facts, node: NodeFile, expected: str) -> None:
    expect("device-nodes", real(well, node), expected)


def test_what_cannot_be_known_of_nodes_and_attributes_is_no_finding_or_not_checked(well: Facts) -> None:
    expect("device-nodes", real(well, numbers={0: None, 1: None}), "ok")
    expect("device-nodes", real(well, simulated=True), "ok: to read and write (simulated)")
    unseen = with_host(well, nodes=Unknown("no permission", "run this as root"))
    expect("device-nodes", unseen, "unchecked: not checked: no permission")
    path = "/sys/class/neuron_device/neuron0/reset"
    devices = (replace(well.machine.inventory.devices[0], problems=(f"{path} may not be read (denied): root can",)),)
    inventory = replace(well.machine.inventory, devices=devices)
    expect("sysfs", replace(well, machine=replace(well.machine, inventory=inventory)), f"unchecked: {path} ~ root")


DISABLED: dict[str, tuple[str, tuple[int, ...], str]] = {
    "devices out of service, and how to put them back": (
        "3, 5",
        (3, 5),
        "note: devices 3,5 are out of service ~ neuron-plugin uncordon NODE 3,5",
    ),
    "a list that cannot be read, beside what the daemon goes by": (
        "3;5",
        (3,),
        "warning: reads '3;5' | note: device 3 is out of service",
    ),
    "an id that is no device of the machine": (
        "3,57",
        (3,),
        "warning: names device 57, this machine has 0 to  | note: device 3 is out of service",
    ),
    "a daemon that does not follow the annotation": (
        "3,5",
        (3,),
        "note: devices 3,5 are | warning: the daemon has 3 out of service, the annotation says 3,5",
    ),
}
"""What the Node's annotation says, what the daemon has out of service, and what is found."""


def disabling(facts: Facts, text: str, daemon: tuple[int, ...]) -> Facts:
    assert isinstance(facts.cluster, ClusterFacts)
    return replace(
        facts,
        cluster=replace(facts.cluster, annotations={**facts.cluster.annotations, DISABLE_KEY: text}),
        daemon=replace(facts.daemon, disabled=daemon),
        machine=replace(facts.machine, disabled=daemon),
    )


@pytest.mark.parametrize(("text", "daemon", "expected"), DISABLED.values(), ids=DISABLED)
def test_what_is_out_of_service(well: Facts, text: str, daemon: tuple[int, ...], expected: str) -> None:
    expect("disabled", disabling(well, text, daemon), expected)


def test_without_an_api_server_the_daemon_says_what_is_out_of_service(well: Facts) -> None:
    facts = replace(disabling(well, "", (3,)), cluster=Unknown("no API server is known"))
    expect("disabled", facts, "note: device 3 is out of service")
    unasked = replace(facts, daemon=replace(facts.daemon, disabled=Unknown("no daemon answers")))
    expect("disabled", unasked, "unchecked: ")
