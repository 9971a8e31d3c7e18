"""What happens to a simulated node's daemon only in tests."""

from __future__ import annotations

from neuron_plugin.simulation.worker import SimulatedWorker


async def kill_daemon(worker: SimulatedWorker) -> None:
    """End the node daemon by SIGKILL."""
    assert worker.daemon is not None
    worker.daemon.kill()
    await worker.daemon.wait()
    worker.daemon = None
