"""By which paths the microbatches of an attempt go, and who says so (rules 20, 21).

The holder of the head that admits a microbatch chooses its path once. In a run with checks it signs it, and its word
goes along with every tensor of that microbatch. So nobody else can give a microbatch to two holders of a stage, each on
a path of its own: these would both count it, and be at odds. A head that does so has signed two paths. Whoever has met
both shows them to all. Where the paths have nobody in common, two of a group say that they did the same visit. Each
shows the other by whose word. A path that is repaired stands in the Begin, and needs no other word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ftnode.protocol.words.messages import Begin, Boundary, Seal, SealedTensor, path_digest
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Direction, Peer
from ftnode.protocol.words.view import View

SHOWN_TIMES = 2
"""Of one microbatch to one peer: the first may be lost with a link."""
DOUBLES_MAX = 4
"""Of so many microbatches to one peer, in an attempt."""


def path_word(boundary: Boundary) -> SealedTensor | None:
    """The word for the path of the tensor, by who comes first on it. None: it has none, or one for another path."""
    seal, path = boundary.admitted, boundary.path
    if seal is None or not path or seal.digest != path_digest(path):
        return None
    return SealedTensor(boundary.microbatch, 0, Direction.FORWARD, path[0], seal)


class Admissions:
    """Of one attempt, as one peer knows them."""

    def __init__(self, me: Peer, view: View, begin: Begin, settings: Settings) -> None:
        self.me, self._settings = me, settings
        self._ours: dict[int, Seal] = {}
        """Of what we admitted. The core has no keys: the signature is made as a tensor leaves."""
        self._words: dict[int, SealedTensor] = {}
        """Of what others did, the first word that we got."""
        self._shown = Counter[tuple[Peer, int]]()
        """(to whom, microbatch) → how often."""
        self._named: set[Peer] = set()
        """Who has signed two paths, as we told all."""
        self.continue_in(view, begin)

    def continue_in(self, view: View, begin: Begin) -> None:
        """The attempt begins, or goes on in a new view."""
        self._heads = view.holders[HEAD]
        self._shares = {m: peer for peer, share in begin.shares for m in share}
        self._repaired = dict(begin.paths)

    def admit(self, microbatch: int, path: tuple[Peer, ...]) -> None:
        """We hold the head, and have chosen this path."""
        if self._settings.checks:
            self._ours[microbatch] = Seal(path_digest(path), "")

    def word_of(self, microbatch: int) -> Seal | None:
        """What goes along with tensors of it. None: its path stands in the Begin, or nobody signs any."""
        if microbatch in self._repaired:
            return None
        known = self._words.get(microbatch)
        return known.seal if known is not None else self._ours.get(microbatch)

    def allows(self, boundary: Boundary) -> bool:
        """The path is that of the Begin, or one that the holder of the head has chosen to which the Begin gives the
        microbatch. Requires a path that is not empty."""
        microbatch, path = boundary.microbatch, boundary.path
        if microbatch in self._repaired:
            return path == self._repaired[microbatch]
        if path[0] != self._admits(microbatch):
            return False
        return not self._settings.checks or path_word(boundary) is not None

    def _admits(self, microbatch: int) -> Peer | None:
        """Of a validation the first holder of the head."""
        if microbatch < self._settings.microbatches:
            return self._shares.get(microbatch)
        return self._heads[0] if self._heads else None

    def came(self, boundary: Boundary) -> None:
        """A tensor that is allowed is here."""
        word = path_word(boundary)
        if word is not None:
            self._words.setdefault(boundary.microbatch, word)

    def two_paths(self, words: Iterable[SealedTensor]) -> tuple[SealedTensor, ...]:
        """Our word for a path and one of these, if one peer has signed both for one microbatch, and it is news."""
        for word in words:
            ours = self._words.get(word.microbatch)
            if ours is None or not word.of_path or not 0 <= word.microbatch < self._settings.microbatches:
                continue
            if ours.maker == word.maker and ours.seal.digest != word.seal.digest and word.maker not in self._named:
                self._named.add(word.maker)
                return ours, word
        return ()

    def to_show(self, peer: Peer, doubles: Iterable[int]) -> list[SealedTensor]:
        """By whose word we have these microbatches, for another of a group that says that it has done them as well."""
        words = [self._words[m] for m in dict.fromkeys(doubles) if m in self._words]
        return [word for word in words if word.maker != peer and self._may_show(peer, word.microbatch)]

    def _may_show(self, peer: Peer, microbatch: int) -> bool:
        """Nobody is shown the same without end, nor much."""
        before = self._shown[peer, microbatch]
        if before >= SHOWN_TIMES or (not before and sum(to == peer for to, _ in self._shown) >= DOUBLES_MAX):
            return False
        self._shown[peer, microbatch] += 1
        return True
