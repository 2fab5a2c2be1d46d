"""Named deadlines of one participant: every wait has one (invariant I8)."""

from __future__ import annotations


class Timers:
    """A few named points in time. `deadline` is the earliest."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self.deadline = float("inf")

    def set(self, name: str, at: float) -> None:
        self._due[name] = at
        self.deadline = min(self._due.values())

    def set_earlier(self, name: str, at: float) -> None:
        """Not later than it is set already."""
        self.set(name, min(at, self._due.get(name, at)))

    def clear(self, name: str) -> None:
        if self._due.pop(name, None) is not None:
            self.deadline = min(self._due.values(), default=float("inf"))

    def expired(self, now: float) -> list[str]:
        """The names that are due, removed, earliest first."""
        if now < self.deadline:
            return []
        names = sorted((at, name) for name, at in self._due.items() if at <= now)
        for _, name in names:
            del self._due[name]
        self.deadline = min(self._due.values(), default=float("inf"))
        return [name for _, name in names]
