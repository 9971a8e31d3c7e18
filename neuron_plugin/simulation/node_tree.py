"""Every file that the driver makes for a device: path, bytes and mode.

A table computed from the description, so that the tree is one value that can be compared, and a fault is the
difference of two. Source: Neuron driver 2.24.7 and 2.25.4 (names, formats, modes), SDK documentation to 2.32 for
what came later. What lies below ``health_status`` is unpublished: a comma-separated line is assumed, and a counter
named ``hw_error_events``.
Left out: ``power/*``, the kernel's own for every device, which says nothing about Neuron.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from neuron_plugin.simulation.node_description import NodeDescription, SimulatedDevice
from neuron_plugin.simulation.node_links import connected_devices_text

_CONNECTED_DEVICES = (2, 13, 4)
_ECC_COUNTERS = (2, 14, 5)
_POWER = (2, 21, 37)
UNHEALTHY_COMPONENTS = (2, 30, 2)
HEALTH_STATUS = (2, 28)
_READABLE_BY_ALL = (2, 28)

_HOST_MEMORY = (
    *("dma_buffers", "tensors", "constants", "application_memory"),
    *("driver_memory", "notifications", "dma_rings", "uncategorized"),
)
_DEVICE_MEMORY = (
    *("model_code", "tensors", "constants", "model_shared_scratchpad", "runtime_memory", "driver_memory"),
    *("collectives", "nonshared_scratchpad", "notifications", "dma_rings", "uncategorized"),
)
_STATUS = (
    *("success", "failure", "timeout", "exec_bad_input", "hw_error", "execute_completed_with_error"),
    *("execute_completed_with_num_error", "generic_error", "resource_error", "resource_nc_error"),
    *("execute_failed_to_queue", "invalid_error", "unsupported_neff_version", "oob_error", "hw_collectives_error"),
    *("hw_hbm_ue_error", "hw_nc_ue_error", "hw_dma_abort_error", "execute_sw_nq_overflow"),
    *("execute_sw_semaphore_error", "execute_sw_event_error", "execute_sw_psum_collision"),
    *("execute_sw_sequencer_fatal", "hw_repairable_hbm_ue_error"),
)
CORE_ERRORS = ("hw_error", "hw_nc_ue_error", "hw_hbm_ue_error", "hw_dma_abort_error")
"""Those of ``_STATUS`` that say something of the hardware."""
_OTHER = ("model_load_count", "reset_req_count", "reset_fail_count", "inference_count", "flop_count", "nc_time_in_use")
_COUNTER = ("total", "present")
_MEMORY_COUNTER = ("total", "present", "peak")


@dataclass(frozen=True, slots=True)
class File:
    """Bytes and permissions of one file."""

    text: str
    mode: int = 0o644


def device_files(description: NodeDescription, device: int) -> dict[str, File]:
    """Every file of one device by its path below the device's directory."""
    state = description.device(device)
    files = {
        **_identity(description, device, state),
        **_hardware(description, state),
    }
    if description.usage_counters:
        files.update(_memory("stats/memory_usage/host_mem", _HOST_MEMORY))
    arch = description.generation.core_arch
    for core in range(description.generation.cores_per_device):
        files[f"neuron_core{core}/info/architecture/arch_type"] = File(arch + "\n")
        if description.usage_counters:
            files.update(_core_counters(core, tensor_engine=arch != "NCv1"))
            files.update(_core_errors(core, state.core_errors.get(core, {})))
    return _overridden(files, state)


def class_files(description: NodeDescription) -> dict[str, File]:
    """The plain files beside the devices: this machine is in no UltraServer."""
    if _is_switched(description.instance_type):
        return {"node_id": File("-1\n", 0o444), "reservation_id": File("0000000000000000\n", 0o444)}
    ids = {f"node_id_{size}": File("-1\n", 0o444) for size in (2, 4)}
    servers = {f"server_id_{size}": File("0000000000000000\n", 0o444) for size in (2, 4)}
    return {**ids, **servers, "ultraserver_mode": File("\n", 0o444)}


def serial_number(device: int) -> str:
    """An invented serial number; the same device always has the same one."""
    return f"00000b1c2d3e{0x4F50 + device:04x}"


def _identity(description: NodeDescription, device: int, state: SimulatedDevice) -> dict[str, File]:
    generation, driver = description.generation, description.driver
    mode = 0o444 if driver.at_least(*_READABLE_BY_ALL) else 0o400
    major = description.major
    files = {
        "dev": File(f"{major}:{device}\n", 0o444),
        "uevent": File(f"MAJOR={major}\nMINOR={device}\nDEVNAME=neuron{device}\n"),
        "core_count": File(str(generation.cores_per_device), mode),
        "reset": File(f"{state.reset}\n", 0o600),
        "info/notify_delay": File("-1\n"),
        "info/architecture/arch_type": File(generation.device_arch + "\n"),
        "info/architecture/instance_type": File(generation.family + "\n"),
        "info/architecture/device_name": File(generation.device_name + "\n"),
    }
    if driver.at_least(*_CONNECTED_DEVICES):
        text = connected_devices_text(generation.device_name, device, description.loaded, description.device_count)
        files["connected_devices"] = File(text, mode)
    if generation.device_arch != "NDv1":
        files["info/serial_number"] = File(serial_number(device) + "\n")
    return files


def _hardware(description: NodeDescription, state: SimulatedDevice) -> dict[str, File]:
    driver, files = description.driver, dict[str, File]()
    if driver.at_least(*_POWER):
        files["stats/power/utilization"] = File("POWER_STATUS_VALID,1789180860,0.00,0.00,0.00\n")
    if description.generation.device_arch == "NDv1":
        return files
    if driver.at_least(*_ECC_COUNTERS):
        files["stats/hardware/sram_ecc_uncorrected"] = File(f"{state.sram_ecc}\n")
        files["stats/hardware/mem_ecc_uncorrected"] = File(f"{state.memory_ecc}\n")
        files["stats/hardware/mem_ecc_repairable_uncorrected"] = File(f"{state.repairable_ecc}\n")
    if driver.at_least(*HEALTH_STATUS):
        files["stats/hardware/health_status/hw_error_events"] = File(f"{state.error_events}\n")
    if driver.at_least(*UNHEALTHY_COMPONENTS):
        files["stats/hardware/sram_ecc_corrected"] = File("0\n")
        files["stats/hardware/mem_ecc_corrected"] = File("0\n")
        components = ",".join(state.unhealthy_components)
        files["stats/hardware/health_status/unhealthy_components"] = File(components + "\n")
        if description.device_name in {"Trainium2", "Trainium3"}:
            files["stats/hardware/health_status/healthcheck_heartbeat"] = File("0\n")
    return files


def _core_errors(core: int, counts: Mapping[str, int]) -> dict[str, File]:
    directory = f"neuron_core{core}/stats/status"
    return {f"{directory}/{name}/{part}": File(f"{count}\n") for name, count in counts.items() for part in _COUNTER}


@lru_cache(maxsize=64)
def _core_counters(core: int, *, tensor_engine: bool) -> Mapping[str, File]:
    stats = f"neuron_core{core}/stats"
    files = {f"{stats}/status/{name}/{part}": File("0\n") for name in _STATUS for part in _COUNTER}
    files |= {f"{stats}/other_info/{name}/{part}": File("0\n") for name in _OTHER for part in _COUNTER}
    files |= {f"{stats}/memory_usage/host_mem/{part}": File("0\n") for part in _MEMORY_COUNTER}
    files |= {f"{stats}/memory_usage/device_mem/{part}": File("0\n") for part in _MEMORY_COUNTER}
    files |= _memory(f"{stats}/memory_usage/device_mem", _DEVICE_MEMORY)
    if tensor_engine:
        files[f"{stats}/tensor_engine/pe_cntrs"] = File("xrow_grp,mm_active,wl_active,idle\n")
    return files


def _memory(directory: str, kinds: tuple[str, ...]) -> dict[str, File]:
    return {f"{directory}/{kind}/{part}": File("0\n") for kind in kinds for part in _MEMORY_COUNTER}


def _overridden(files: dict[str, File], state: SimulatedDevice) -> dict[str, File]:
    for path, text in state.overrides.items():
        if text is None:
            files.pop(path, None)
        else:
            files[path] = File(text, files[path].mode if path in files else 0o644)
    return files


def _is_switched(instance_type: str) -> bool:
    """Types whose devices are linked by a switch have other class attributes (driver 2.25.4)."""
    family = instance_type.partition(".")[0]
    return family in {"trn2es", "trn3s", "trn3s-es", "trn3-dev0", "trn3-dev1"}
