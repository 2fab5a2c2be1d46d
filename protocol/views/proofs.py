"""What the views that we have gone by rest on, and whether another one follows from them (rules 12, 14, 16).

A view is proved by the signatures of the voters that accepted it. Whoever trusts one view of a lineage follows a later
one that a quorum of its voters has signed: a voter signs nothing that does not follow from the view that it votes in.
So one proof leads over many views while most voters stay. Where they do not, the views between come along.

Signatures are verified before the core hears of them; here it counts who signed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ftnode.protocol.views.succession import descends
from ftnode.protocol.wire.admission import BETWEEN_MAX
from ftnode.protocol.words.messages import Certificate, Link, Proof
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View, majority

LINEAGES_KEPT: Final = 8
VIEWS_KEPT: Final = 64
"""Of each lineage. Whoever was away for longer, and finds none of the old voters, begins like a newcomer."""


class Known(NamedTuple):
    view: View
    proof: Proof | None
    """None: the directory shows it, and nobody has proved it."""


class Proofs:
    """The newest views of the newest lineages that we have gone by."""

    def __init__(self) -> None:
        self._lineages: dict[str, dict[int, Known]] = {}

    def keep(self, view: View, proof: Proof | None) -> None:
        """We go by it from now on, or could have."""
        known = self._lineages.pop(view.lineage.id, {})
        self._lineages[view.lineage.id] = known
        known[view.number] = Known(view, proof)
        while len(known) > VIEWS_KEPT:
            del known[min(known)]
        while len(self._lineages) > LINEAGES_KEPT:
            del self._lineages[next(iter(self._lineages))]

    def of(self, view: View) -> Proof | None:
        known = self._lineages.get(view.lineage.id, {}).get(view.number)
        return known.proof if known is not None and known.view == view else None

    def follow(self, mine: View, shown: Certificate) -> Known | None:
        """The latest view of the certificate that follows from ours; the views between are remembered."""
        at = Known(mine, None)
        links = [Known(link.view, link.proof) for link in shown.between]
        for link in [*links, Known(shown.view, shown.proof)]:
            if follows(at.view, link):
                at = link
                self.keep(*link)
        return at if at.view != mine else None

    def between(self, since: int, view: View) -> tuple[Link, ...]:
        """What somebody needs who goes by the view of this number, to follow `view`; as much of it as we have."""
        known = self._lineages.get(view.lineage.id, {})
        at, target, path = known.get(since), known.get(view.number), list[Link]()
        while at is not None and target is not None and not follows(at.view, target) and len(path) < BETWEEN_MAX:
            later = sorted((number for number in known if at.view.number < number < view.number), reverse=True)
            at = next((known[number] for number in later if follows(at.view, known[number])), None)
            if at is not None and at.proof is not None:
                path.append(Link(at.view, at.proof))
        return tuple(path)

    def akin(self, proof: Proof | None) -> bool:
        """Has somebody signed it of whom akin_to speaks?"""
        return proof is not None and self.akin_to(proof.signers())

    def akin_to(self, signers: frozenset[Peer]) -> bool:
        """Was one of them in a view that was proved to us, or in one that such a view comes out of?"""
        known = [each for views in self._lineages.values() for each in views.values()]
        return any(not signers.isdisjoint(each.view.members()) and self._is_proved(each) for each in known)

    def by_most(self, signers: frozenset[Peer], mine: View) -> bool:
        """Are they more than half of the voters of our view, or of one that our lineage comes out of?"""
        known = (each.view for views in self._lineages.values() for each in views.values())
        return most(signers, mine) or any(most(signers, view) for view in known if descends(mine, view))

    def _is_proved(self, known: Known) -> bool:
        """A proved view names the one before it by its digest, and a fork the one that it comes out of by its own
        name."""
        view, proof = known
        if proof is not None:
            return True
        after = self._lineages[view.lineage.id].get(view.number + 1)
        if after is not None and after.proof is not None and after.view.previous == view.digest():
            return True
        others = (views for name, views in self._lineages.items() if name != view.lineage.id)
        return any(
            later.proof is not None and descends(later.view, view) for views in others for later in views.values()
        )


def most(signers: frozenset[Peer], view: View) -> bool:
    """They are more than half of the view's voters, in whatever life of theirs."""
    voters, signed = {voter.id for voter in view.voters}, {peer.id for peer in signers}
    return len(voters & signed) >= majority(len(voters))


def follows(trusted: View, later: Known) -> bool:
    """A quorum of the trusted view's voters has signed the later one."""
    view, proof = later
    if proof is None or view.lineage != trusted.lineage or view.number <= trusted.number:
        return False
    if view.number == trusted.number + 1 and view.previous != trusted.digest():
        return False
    return trusted.is_quorum(proof.signers())
