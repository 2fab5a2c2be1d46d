"""What a stage has accumulated for the step in progress. Exactly once is kept here, apart from any arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ftnode.models.faults import Misuse

AttemptId = tuple[int, int]
Visit = tuple[int, int]
"""(microbatch, visit)."""


class Ledger:
    """Of one stage and one attempt at a time. Raises Misuse for whatever would count twice or in the wrong attempt."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.attempt: AttemptId | None = None
        self.reduced = False
        self.spoiled = ""
        """Why the accumulated numbers are unusable; only another attempt helps."""
        self._covered: set[Visit] = set()

    def admit(self, attempt: AttemptId, visit: Visit) -> None:
        """Check that `visit` may be accumulated now; `accumulating` follows."""
        self._require(attempt, opens=True)
        if self.reduced:
            raise Misuse(f"the gradient of attempt {attempt} is already reduced", self.stage)
        if visit in self._covered:
            raise Misuse(f"microbatch {visit[0]} at visit {visit[1]} is already accumulated", self.stage)

    @contextmanager
    def accumulating(self, attempt: AttemptId, visit: Visit) -> Iterator[None]:
        """What is done within adds the numbers of an admitted visit. Whatever breaks off there spoils the attempt."""
        self.attempt = attempt
        before, self.spoiled = self.spoiled, "a backward pass broke off"
        yield
        self.spoiled = before
        self.record(attempt, visit)

    def record(self, attempt: AttemptId, visit: Visit) -> None:
        self.attempt = attempt
        self._covered.add(visit)

    def spoil(self, attempt: AttemptId, reason: str) -> None:
        """Numbers of this attempt turned out to be broken; without effect when it is over."""
        if self.attempt == attempt:
            self.spoiled = self.spoiled or reason

    def covered(self) -> list[list[int]]:
        return [list(visit) for visit in sorted(self._covered)]

    def require_accumulated(self, attempt: AttemptId) -> None:
        self._require(attempt, opens=False)

    def require_reduced(self, attempt: AttemptId) -> None:
        self._require(attempt, opens=False)
        if not self.reduced:
            raise Misuse(f"attempt {attempt} has no reduced gradient", self.stage)

    def clear(self) -> None:
        self.attempt, self.reduced, self.spoiled = None, False, ""
        self._covered.clear()

    def _require(self, attempt: AttemptId, opens: bool) -> None:
        if self.attempt != attempt and not (opens and self.attempt is None):
            raise Misuse(f"attempt {attempt} was asked for, but {self.attempt or 'nothing'} is accumulated", self.stage)
