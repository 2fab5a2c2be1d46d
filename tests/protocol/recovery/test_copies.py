"""Who keeps copies of what, by the view and by where peers are, and what a keeper makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.planning.keepers import keeping_stage
from ftnode.protocol.recovery.copies import OwnCopies, keepers
from ftnode.protocol.words.effects import DropCopy, Keep, Note, TakeCopy
from ftnode.protocol.words.events import KeepFailed, Kept
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, LentCopy, Peer, Version
from ftnode.protocol.words.view import View
from tests.protocol.beginnings import BASE, begun
from tests.protocol.situations import SETTINGS, A, B, C, D, situation, view_of

PLAIN = replace(SETTINGS, head_every=4)


def settings_of(view: View, head_every: int = 1, shadow_every: int = 0) -> Settings:
    return Settings("run", len(view.holders) - 1, 100, 4, 2, head_every=head_every, shadow_every=shadow_every)


def of_head(*groups: str, **sites: str) -> str:
    """Names of peers that keep the head's copies; a group of holders is a word. `sites`: a="x"."""
    view = view_of(*(tuple(Peer(name, 1) for name in group) for group in groups))
    where = {Peer(name, 1): site for name, site in sites.items()}
    return "".join(sorted(peer.id for stage, peer in keepers(view, settings_of(view), where) if stage == HEAD))


def shadows(*groups: str, **sites: str) -> str:
    """Of block stage 1 and on, who keeps the shadow; - for nobody."""
    view = view_of(*(tuple(Peer(name, 1) for name in group) for group in groups))
    where = {Peer(name, 1): site for name, site in sites.items()}
    found = dict(keepers(view, settings_of(view, 0, 3), where))
    return "".join(found[stage].id if stage in found else "-" for stage in range(1, len(groups)))


@pytest.mark.parametrize(
    ("groups", "keep"),
    [("a b", "a"), ("a b c", "cb"), ("a b c d", "dbc"), ("a a", "-"), ("ab a", "b"), ("a b b", "--")],
)
def test_where_all_stages_are_adjacent_the_shadow_lies_beside(groups: str, keep: str) -> None:
    """That of the one block stage with the head; nobody keeps what it holds itself."""
    assert shadows(*groups.split()) == keep


@pytest.mark.parametrize("stages", range(4, 40))
def test_no_shadow_lies_with_an_adjacent_stage(stages: int) -> None:
    keep = {stage: keeping_stage(stage, stages) for stage in range(1, stages + 1)}
    assert sorted(keep.values()) == list(range(1, stages + 1)), "everybody keeps one"
    assert all(abs(stage - keeper) > 1 for stage, keeper in keep.items())
    peers = [Peer(f"p{stage:02}", 1) for stage in range(stages + 1)]
    view = view_of(*((peer,) for peer in peers))
    found = dict(keepers(view, settings_of(view, 0, 1), {}))
    assert found == {stage: peers[keeper] for stage, keeper in keep.items()}


@pytest.mark.parametrize(
    ("groups", "sites", "names"),
    [
        ("a b c d e f g", {}, "bg"),
        ("a b", {}, "b"),
        ("a", {}, ""),
        ("b b c d e f g", {}, "cg"),
        ("a a c a", {}, "c"),
        ("a a a a", {}, ""),
        ("a a ab a", {}, "b"),
        ("ab a ba cb", {}, "c"),
        ("a b c d e", {"a": "x", "b": "x", "c": "y", "d": "y", "e": "x"}, "cd"),
        ("a b c d e", {"a": "x", "b": "x", "c": "y", "d": "y", "e": "z"}, "ce"),
        ("a b c d e", {"a": "x", "b": "x", "c": "x", "d": "y", "e": "x"}, "bd"),
        ("a b c", {"a": "x", "b": "x", "c": "x"}, "bc"),
        ("a b c d", {"a": "x", "b": "x", "d": "x"}, "cd"),
        ("a b c d", {"b": "x", "c": "y", "d": "x"}, "bc"),
        ("ab c d e", {"a": "x", "b": "y", "c": "y", "d": "z", "e": "x"}, "de"),
        ("a b bc d", {"a": "x", "b": "x", "c": "y", "d": "x"}, "cd"),
    ],
    ids=[
        "both ends",
        "one block stage",
        "nobody else",
        "who holds an end holds the head",
        "one holds the head and both ends",
        "one holds all",
        "another one is nowhere the first",
        "of replicas too",
        "both away from the head",
        "and from each other",
        "one at least",
        "all at one site",
        "an unknown site before the same one",
        "of a head somewhere, two apart",
        "away from all holders of the head",
        "a second holder elsewhere",
    ],
)
def test_who_keeps_the_head(groups: str, sites: dict[str, str], names: str) -> None:
    assert of_head(*groups.split(), **sites) == names


@pytest.mark.parametrize(
    ("groups", "sites", "names"),
    [
        ("h a b c d", {}, "cdab"),
        ("h a b b d", {}, "bdab"),
        ("h a a a d", {}, "ddda"),
        ("h a b c d", {"a": "x", "b": "x", "c": "y", "d": "y"}, "cdab"),
        ("h a b c d", {"a": "x", "b": "y", "c": "x", "d": "y"}, "dabc"),
        ("h a b c d", {"a": "x", "b": "x", "c": "x", "d": "y"}, "dabc"),
        ("h ae b c d", {"a": "x", "e": "y", "b": "x", "c": "x", "d": "y"}, "cdeb"),
    ],
    ids=[
        "half a pipeline away",
        "another one than holds it",
        "more than it has room for",
        "halves",
        "in turn",
        "as many as one has room for",
        "a replica elsewhere",
    ],
)
def test_who_keeps_shadows(groups: str, sites: dict[str, str], names: str) -> None:
    assert shadows(*groups.split(), **sites) == names


@pytest.mark.parametrize(
    ("kept", "names"), [("", "be"), ("e", "be"), ("d", "bd"), ("c", "ce"), ("cd", "cd"), ("a", "be")]
)
def test_who_has_a_copy_of_the_head_goes_on_keeping_it(kept: str, names: str) -> None:
    """The others are those that are there for the other end."""
    view = view_of(*((Peer(name, 1),) for name in "abcde"))
    found = keepers(view, settings_of(view), {}, {Peer(name, 1) for name in kept})
    assert sorted(peer.id for _, peer in found) == [*names]


def test_nobody_keeps_what_the_run_does_without() -> None:
    view = view_of((A,), (B,), (C,), (D,), (Peer("e", 1),))
    assert keepers(view, settings_of(view, 0, 0), {}) == ()
    assert {stage for stage, _ in keepers(view, settings_of(view, 2, 0), {})} == {HEAD}


def asked_for(
    copies: OwnCopies, *named: tuple[int, Peer], base: Version = BASE, settings: Settings = PLAIN
) -> list[str]:
    """What B does at the Begin that names these; it holds stage 1 of view 3."""
    out = copies.on_begin(situation(me=B, settings=settings), begun(base, keepers=named))
    keeps = [f"keep {effect.donor.stage} of {effect.donor.peer}" for effect in out if isinstance(effect, Keep)]
    return keeps + [f"drop {effect.stage}" for effect in out if isinstance(effect, DropCopy)]


def test_a_member_keeps_what_the_begin_says() -> None:
    copies, later = OwnCopies(), replace(BASE, step=BASE.step + 2)
    assert asked_for(copies, (0, B), (0, C)) == ["keep 0 of a"]
    copies.on_kept(Kept(0, BASE, 9, 0.1))
    assert copies.versions() == ((0, BASE),)
    assert asked_for(copies, (0, B), base=later) == [], "not due"
    assert asked_for(copies, (0, C), base=later) == ["drop 0"]
    assert copies.versions() == ()


def test_no_copy_is_made_of_what_one_holds_itself_or_the_run_does_without() -> None:
    assert asked_for(OwnCopies(), (1, B)) == []
    assert asked_for(OwnCopies(), (0, B), settings=replace(PLAIN, head_every=0)) == []
    assert asked_for(OwnCopies(), (2, B)) == [], "no shadows"


def test_who_is_out_of_the_view_keeps_its_copies() -> None:
    copies = OwnCopies()
    assert asked_for(copies, (0, B)) == ["keep 0 of a"]
    copies.on_kept(Kept(0, BASE, 9, 0.1))
    copies.on_begin(situation(me=D, settings=PLAIN), begun(replace(BASE, step=9), learners=((1, D),)))
    assert copies.versions() == ((0, BASE),)


def kept_at(copies: OwnCopies, base: Version, *lent: Version) -> int:
    """The step of the copy of the head that B lends after a Begin of this base, which tells of these."""
    copies.on_begin(situation(me=B, settings=PLAIN), begun(base, keepers=((0, B),), lent=lent_to_b(*lent)))
    return copies.versions()[0][1].step


def lent_to_b(*versions: Version) -> tuple[LentCopy, ...]:
    return tuple(LentCopy(HEAD, B.id, version, f"of {version.step}") for version in versions)


def test_a_copy_stays_until_a_begin_tells_of_the_newer_one() -> None:
    copies, newer, later = OwnCopies(), replace(BASE, step=8), replace(BASE, step=9)
    asked_for(copies, (0, B))
    assert [*copies.on_kept(Kept(0, BASE, 9, 0.1))] == [TakeCopy(0)], "there is no other"
    assert asked_for(copies, (0, B), base=newer) == ["keep 0 of a"]
    assert not copies.on_kept(Kept(0, newer, 9, 0.1)) and kept_at(copies, later, BASE) == BASE.step
    assert kept_at(copies, later, newer) == newer.step


def test_what_was_told_of_later_steps_counts_no_more_when_the_run_went_back() -> None:
    """As by an order to roll back, or in another lineage."""
    copies, newer = OwnCopies(), replace(BASE, step=8)
    copies.on_begin(situation(me=B, settings=PLAIN), begun(BASE, lent=lent_to_b(replace(BASE, step=1000))))
    copies.forget(None)
    asked_for(copies, (0, B))
    copies.on_kept(Kept(0, BASE, 9, 0.1))
    asked_for(copies, (0, B), base=newer)
    copies.on_kept(Kept(0, newer, 9, 0.1))
    assert kept_at(copies, replace(newer, step=9), newer) == newer.step


def test_a_copy_that_a_begin_told_of_before_it_was_whole_is_taken_at_once() -> None:
    copies, newer = OwnCopies(), replace(BASE, step=8)
    asked_for(copies, (0, B))
    copies.on_kept(Kept(0, BASE, 9, 0.1))
    asked_for(copies, (0, B), base=newer)
    assert kept_at(copies, replace(newer, step=9), newer) == BASE.step, "it is on its way"
    assert [*copies.on_kept(Kept(0, newer, 9, 0.1))] == [TakeCopy(0)]
    assert copies.versions() == ((0, newer),)


def test_a_copy_that_no_begin_could_tell_of_yet_outlives_the_next_one_that_is_due() -> None:
    """On thin lines with fast steps each copy is whole just before the next one is due."""
    copies, steps = OwnCopies(), [replace(BASE, step=8 + 4 * number) for number in range(3)]
    asked_for(copies, (0, B))
    copies.on_kept(Kept(0, BASE, 9, 0.1))
    assert asked_for(copies, (0, B), base=steps[0]) == ["keep 0 of a"]
    copies.on_kept(Kept(0, steps[0], 9, 0.1))
    assert asked_for(copies, (0, B), base=steps[1]) == [], "it waits for one more Begin"
    after = replace(steps[1], step=steps[1].step + 1)
    told = begun(after, keepers=((0, B),), lent=lent_to_b(steps[0]))
    out = [*copies.on_begin(situation(me=B, settings=PLAIN), told)]
    assert out[0] == TakeCopy(0) and copies.versions() == ((0, steps[0]),)
    assert [effect.version for effect in out if isinstance(effect, Keep)] == [after], "late, and not left out"
    copies.on_kept(Kept(0, after, 9, 0.1))
    assert asked_for(copies, (0, B), base=replace(after, step=after.step + 1)) == [], "nothing is due"


def test_a_copy_that_nobody_tells_of_makes_room_for_the_next_one() -> None:
    """As of a holder that was lost, or that tells nobody what it lends."""
    copies, newer, due = OwnCopies(), replace(BASE, step=8), replace(BASE, step=12)
    asked_for(copies, (0, B))
    copies.on_kept(Kept(0, BASE, 9, 0.1))
    asked_for(copies, (0, B), base=newer)
    copies.on_kept(Kept(0, newer, 9, 0.1))
    assert asked_for(copies, (0, B), base=due) == []
    assert asked_for(copies, (0, B), base=replace(due, step=13)) == ["keep 0 of a"]


def test_a_copy_of_the_head_that_does_not_come_is_called_so() -> None:
    copies = OwnCopies()
    asked_for(copies, (0, B))
    (note,) = copies.on_failed(KeepFailed(HEAD, BASE, "its donor is gone"))
    assert isinstance(note, Note) and note.text == "no new copy of the head: its donor is gone"
