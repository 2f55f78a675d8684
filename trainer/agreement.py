"""How ranks agree beside the collectives: through the store that they met by.

What is agreed on here (how often to repeat, whose turn it is) must not go over what is being
tested: a fabric that loses or garbles data would take the ranks apart, and blame would fall on an
innocent collective.
"""

from __future__ import annotations

import itertools

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from trainer.group import PATIENCE

_numbers = itertools.count()


class Agreement:
    """Says and hears by name; every name is used once. Every rank makes as many of these."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        # Only torch's own function gives this store: another would need a port of its own.
        self._store = PrefixStore(f"trainer/{next(_numbers)}", _get_default_store())

    def say(self, name: str, value: str = "") -> None:
        """Leave a word for the others."""
        self._store.set(name, value)

    def hear(self, name: str) -> str:
        """Wait for a word. Raises RuntimeError when none has come in PATIENCE."""
        self._store.wait([name], PATIENCE)
        return str(self._store.get(name), "utf-8")

    def meet(self, name: str) -> None:
        """Wait until every rank has come here."""
        if self._store.add(f"{name}/came", 1) == self._world:
            self.say(f"{name}/all")
        self.hear(f"{name}/all")

    def all(self, name: str, value: str) -> list[str]:
        """What every rank says, in the order of ranks."""
        self.say(f"{name}/{self._rank}", value)
        return [self.hear(f"{name}/{rank}") for rank in range(self._world)]
