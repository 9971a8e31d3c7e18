"""The life of a node: its pods, its kubelet, its plugin, its scheduler, and everything that goes wrong among them.

The oracle is what the containers received and whose processes run: no core may be in two of them. Everything else is
held against that: the ledger, the kubelet's account, the annotations, what is offered, and the extender's view.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.plugin.life_arrivals import Arrivals
from tests.plugin.life_base import Mode
from tests.plugin.life_rest import Rest, check_at_rest


class NodeLife(Arrivals, Rest):
    """One node for a while."""

    def __init__(self, mode: Mode, seed: int) -> None:
        super().__init__(mode, seed)
        self.kubelet.meanwhile = self.meanwhile

    async def step(self) -> None:
        self.clock.now += self.chance.random() / 4
        action = self.chance.choices(self.actions, self.weights)[0]
        await action()
        self.check()

    @property
    def actions(self) -> list[Callable[[], Awaitable[None]]]:
        return [action for action, _ in self.what_may_happen]

    @property
    def weights(self) -> list[float]:
        return [weight for _, weight in self.what_may_happen]

    @property
    def what_may_happen(self) -> list[tuple[Callable[[], Awaitable[None]], float]]:
        return [
            (self.create, 14),
            (self.schedule, 16),
            (self.admit, 18),
            (self.deliver, 22),
            (self.confirm, 10),
            (self.send, 10),
            (self.finish, 8),
            (self.collect, 7),
            (self.delete_waiting, 2),
            (self.delete_by_force, 1.5),
            (self.die, 3),
            (self.flip_health, 1.5),
            (self.look, 3),
            (self.wait, 1),
            (self.outage, 0.4),
            (self.restart_kubelet, 0.6),
            (self.kill_plugin, 0.6),
            (self.kill_extender, 0.3),
        ]

    # What must hold at every moment.

    def check(self) -> None:
        """What runs is on the books, as soon as the kubelet could be asked."""
        state = self.plugin.state
        known = state.ledger.used_mask | (state.quarantine.mask if state.quarantine else 0)
        for pod in self.bound:
            asked = pod.uid in state.confirmed and pod.alive
            if asked and pod.mask & ~known:
                raise AssertionError(f"{pod} has {self.cores(pod.mask & ~known)}, which no book says")


async def live(mode: Mode, seed: int, steps: int, *, rest_every: int = 500) -> NodeLife:
    """A whole life; a violation names the seed and tells what came before."""
    life = NodeLife(mode, seed)
    number = 0
    try:
        await life.begin()
        for number in range(steps):
            await life.step()
            if number % rest_every == rest_every - 1:
                await life.rest()
                check_at_rest(life)
        await life.rest()
        check_at_rest(life)
        await life.finish_all()
    except Exception as error:
        before = "\n".join(life.last)
        error.add_note(f"seed {seed}, step {number}, {mode}; the last that happened:\n{before}")
        raise
    return life
