"""Whatever is let in may be said again and is let in again: nobody looks like a liar for the words of another.

What a peer says of itself holds much that it heard: of its leader, of members, of peers outside. Each row of the tables
is something at the limit of what is let in; then everything that its hearer says is what its own peers let in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.participant import Participant
from ftnode.protocol.views.ballot import Balloting
from ftnode.protocol.views.succession import fork, next_view, restart
from ftnode.protocol.wire.admission import (
    BALLOTS_MAX,
    GROUP_MAX,
    LISTED_MAX,
    NUMBER_MAX,
    PEER_ID_MAX,
    REASON_MAX,
    objection,
    sensible_presence,
    well_formed,
)
from ftnode.protocol.wire.frames import HEADER_BYTES_MAX, encode_frame, read_message
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.records import EPOCH_MAX, NAME_MAX, Presence
from ftnode.protocol.words.settings import LENT_TOLD
from ftnode.protocol.words.types import (
    RELAYS_TOLD_MAX,
    Attempt,
    Given,
    LentCopy,
    Peer,
    Recovered,
    Rung,
    Snapshot,
    Version,
)
from ftnode.protocol.words.view import Lineage, View
from tests.protocol.wire.test_admission import PEERS, SETTINGS, STRANGER, VIEW, fields_of, participant, some
from tests.protocol.wire.test_ranges import BEAT, BEGIN, OFFER, PROMISE, READY, STATUS, WAITS

LEADER, MEMBER, OTHER, STANDBY = PEERS[0], PEERS[1], PEERS[2], PEERS[4]
STAGES, STEPS = SETTINGS.stage_count, SETTINGS.steps
LARGEST = 1.7e308
LONGEST = 9.9e8
LAST = NUMBER_MAX - 1
ANY_BEGIN = replace(BEGIN, installs=(), commits=(), learners=())
COMMITS = tuple(
    ms.Commit(
        step, 9.9e29, LAST, LONGEST, True, (LARGEST,) * STAGES,
        tuple(Recovered(stage, Rung.COPY, LONGEST) for stage in range(STAGES)),
        (Given("a" * 64, SETTINGS.microbatches * (SETTINGS.stages + 2), STAGES),),
    )
    for step in range(STEPS + 1)
)  # fmt: skip
LENT = tuple(
    LentCopy(stage, f"{n}" * 64, Version(STEPS, "c" * NAME_MAX, Attempt(LAST, LAST)), "d" * NAME_MAX)
    for stage in range(STAGES) for n in range(LENT_TOLD)
)  # fmt: skip
"""Of each stage as many as may be told."""
LEADS = replace(BEAT, stages=(), copies=())
TENSOR_BYTES = 8
MOST_RELAYED = tuple((f"{n}" * 64, LAST) for n in range(RELAYS_TOLD_MAX))


def of_base(version: Version) -> ms.Begin:
    return replace(ANY_BEGIN, step=version.step + 1, base=version, training=version.step < STEPS)


def refused(sender: Peer, message: ms.Message) -> str:
    """Why a peer would drop what `sender` says, by its codec or by its sense; empty when it takes it."""
    payload = TENSOR_BYTES if isinstance(message, ms.Boundary) else 0
    try:
        read_message(encode_frame(message, payload)[8:], payload, BoundaryBytes(TENSOR_BYTES, TENSOR_BYTES))
    except PeerError as error:
        return str(error)
    return objection(sender, message, None, SETTINGS)


def wrong(core: Participant, effects: Iterable[fx.Effect]) -> list[str]:
    """What others would strike this peer for, of what it says in these effects and whenever it is asked."""
    said: list[Any] = [effect.message for effect in effects if isinstance(effect, fx.Send)]
    presences = [effect.presence for effect in effects if isinstance(effect, fx.Announce)]
    said.append(core.heartbeat(False))
    if core.view is not None:
        said += [core.certificate(), core.status()]
    found = [reason for message in said if (reason := refused(core.me, message))]
    odd = [presence for presence in (*presences, core.presence()) if not sensible_presence(presence, SETTINGS)]
    return found + [f"a Presence out of range: {presence}" for presence in odd]


def hears(core: Participant, *events: ev.Event) -> list[str]:
    """As `wrong`, after these events and two seconds of heartbeats. They must be such as are let in."""
    effects: list[fx.Effect] = []
    for number, event in enumerate(events):
        if isinstance(event, ev.Received):
            assert refused(event.sender, event.message) == ""
        effects += core.handle(event, 1.0 + number / 100)
    for beat in range(4):
        effects += core.handle(ev.Wake(), 2.0 + beat / 2)
    return wrong(core, effects)


def said(sender: Peer, message: ms.Message) -> ev.Received:
    return ev.Received(sender, message, None)


@pytest.mark.parametrize(
    "begin",
    [
        replace(ANY_BEGIN, learners=((1, MEMBER), (2, MEMBER), (3, MEMBER))),
        replace(ANY_BEGIN, learners=tuple((stage, peer) for stage in range(STAGES) for peer in PEERS)),
        of_base(Version(5, "c" * NAME_MAX, Attempt(LAST, LAST))),
        of_base(Version(STEPS, "c" * NAME_MAX, Attempt(-1, 0))),
        replace(ANY_BEGIN, attempt=Attempt(LAST, LAST)),
        replace(ANY_BEGIN, commits=COMMITS),
        replace(ANY_BEGIN, lent=LENT),
        replace(ANY_BEGIN, window=NUMBER_MAX),
        replace(ANY_BEGIN, paths=tuple((m, (MEMBER,) * (STAGES + 1)) for m in range(SETTINGS.microbatches))),
        BEGIN,
    ],
    ids=["own stage", "everybody", "base", "end", "attempt", "commits", "lent", "window", "paths", "install"],
)
@pytest.mark.parametrize("me", [MEMBER, STANDBY], ids=["member", "standby"])
def test_what_a_leader_begins_with(begin: ms.Begin, me: Peer) -> None:
    core = participant(me)
    assert hears(core, said(LEADER, begin)) == []
    assert core.view is not None
    refused_by_all = any(peer in core.view.holders[stage] for stage, peer in begin.learners)
    assert me != MEMBER or (core.holder.begin == begin) is not refused_by_all
    again = replace(begin, step=begin.step, attempt=replace_n(begin.attempt))
    assert hears(core, said(LEADER, again)) == []


def replace_n(attempt: Attempt) -> Attempt:
    return attempt._replace(n=min(attempt.n + 1, LAST))


@pytest.mark.parametrize(
    "heartbeat",
    [
        replace(LEADS, commits=COMMITS),
        replace(LEADS, commits=COMMITS[-1:] * LISTED_MAX),
        replace(LEADS, validation=tuple((step, LARGEST) for step in range(STEPS + 1))),
        replace(LEADS, validation=((0, -LARGEST),) * LISTED_MAX),
        replace(LEADS, waiting=ms.HALTED + "x" * (REASON_MAX - len(ms.HALTED))),
        replace(LEADS, step=LAST),
    ],
    ids=["commits", "many commits", "validation", "many", "waiting", "step"],
)
@pytest.mark.parametrize("me", [MEMBER, STANDBY], ids=["member", "standby"])
def test_what_a_leader_says_in_its_heartbeats(heartbeat: ms.Heartbeat, me: Peer) -> None:
    core = participant(me)
    assert hears(core, said(LEADER, heartbeat)) == []
    core.chronicle.learn(COMMITS, 3.0)
    assert wrong(core, ()) == []


@pytest.mark.parametrize("member", [True, False])
@pytest.mark.parametrize(
    "view",
    [
        replace(VIEW, number=LAST - 1),
        replace(VIEW, reason="r" * REASON_MAX),
        replace(VIEW, previous="p" * 4096),
        replace(VIEW, lineage=Lineage("l" * NAME_MAX, 0, 4)),
        replace(VIEW, lineage=Lineage("l" * NAME_MAX, LAST - 1, -(2**63), "r" * NAME_MAX)),
        replace(VIEW, lineage=Lineage("l", 0, 4, "", Version(5, "c" * NAME_MAX, Attempt(EPOCH_MAX - 1, 3)))),
    ],
    ids=["number", "reason", "previous", "lineage", "forks", "start"],
)
def test_what_a_certificate_names(view: View, member: bool) -> None:
    """It is followed, shown, forked and followed by another view."""
    me = MEMBER if member else STANDBY
    core = Participant(me, SETTINGS, Random(1), addresses=("/ip4/127.0.0.1/tcp/1",), hold=1)
    core.handle(ev.ComputeReady(1, True, 1.0), 0.0)
    contacts = tuple(ms.Contact(peer, ("/x" * 200,) * 100) for peer in PEERS[:4])
    assert hears(core, said(LEADER, ms.Certificate(view, True, contacts, STEPS))) == []
    assert core.view == view
    for later in (
        fork(view, MEMBER, 0, PEERS[1:3], "because"),
        next_view(view, LEADER, {PEERS[3]}, (), {3: PEERS[4]}, (), "because"),
    ):
        assert well_formed(later, SETTINGS)


CROWD = tuple(Peer(f"{number}".rjust(52, "p"), 1) for number in range(200))
LONG_LISTS = [
    tuple(f"{number:04}" * 128 for number in range(32)),
    tuple(f"{number:04}" + chr(0x1F600) * 508 for number in range(32)),
]


@pytest.mark.parametrize("size", [24, 200])
@pytest.mark.parametrize("addresses", LONG_LISTS, ids=["long", "of four bytes a letter"])
def test_the_addresses_that_a_member_tells_of_all_others_fit_into_what_we_say(
    size: int, addresses: tuple[str, ...]
) -> None:
    """It takes several messages for it; each is repeated in every certificate and offer of ours."""
    crowd = CROWD[:size]
    view = replace(VIEW, number=4, holders=(VIEW.holders[0], (MEMBER, *crowd), *VIEW.holders[2:]))
    core = participant(MEMBER)
    core.install(view)
    told = [ms.Contact(peer, addresses) for peer in (*crowd, OTHER)]
    few = (ms.Certificate(view, False, tuple(told[at : at + 8])) for at in range(0, len(told), 8))
    assert hears(core, *(said(LEADER, certificate) for certificate in few)) == []
    assert (crowd[0] in core.peers.contacts) == addresses[0].isascii()


@pytest.mark.parametrize("name", ["p" * (PEER_ID_MAX + 1), chr(0x1F600)])
def test_a_view_names_nobody_in_more_bytes_than_a_peer_id_has(name: str) -> None:
    group = (*VIEW.holders[1], Peer(name, 1))
    assert not well_formed(replace(VIEW, holders=(VIEW.holders[0], group, *VIEW.holders[2:])), SETTINGS)


def test_a_view_has_as_many_places_as_a_frame_holds() -> None:
    crowd = tuple(Peer(f"{number}".rjust(PEER_ID_MAX, "p"), 1) for number in range(GROUP_MAX - 1))
    settings = replace(SETTINGS, stages=15)

    def crowded(stages: int) -> View:
        full = [(LEADER, *crowd) if stage < stages else (LEADER,) for stage in range(16)]
        return replace(VIEW, holders=tuple(full), voters=(LEADER,), epochs=(0,) * 16, reason="r" * REASON_MAX)

    assert well_formed(crowded(7), settings) and not well_formed(crowded(8), settings)
    whole = ms.Certificate(crowded(7), True, tuple(ms.Contact(peer, ()) for peer in (LEADER, *crowd)))
    assert len(encode_frame(whole)) < HEADER_BYTES_MAX


def test_a_lineage_whose_name_nobody_could_repeat_is_let_in_nowhere() -> None:
    long = replace(VIEW, lineage=Lineage("l" * (NAME_MAX + 1), 0, 4))
    assert refused(LEADER, ms.Certificate(long, True, ()))
    assert refused(LEADER, replace(PROMISE, accepted_view=replace(long, number=4)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("evaluated", tuple((step, LARGEST) for step in range(STEPS + 1))),
        ("commits", COMMITS),
        ("copies", tuple((stage, Version(5, "c" * NAME_MAX, Attempt(LAST, LAST))) for stage in range(STAGES))),
        ("copies", tuple((stage, Version(LAST, "c", Attempt(3, 1))) for stage in range(STAGES))),
        ("base", Version(STEPS, "c" * NAME_MAX, Attempt(LAST, LAST))),
        ("stages", tuple(ms.StageStatus(s, Version(STEPS, "c", Attempt(LAST, 0)), None, True) for s in range(STAGES))),
        ("snapshots", (Snapshot(1, Version(STEPS, "c" * NAME_MAX, Attempt(3, 1)), "d" * NAME_MAX, EPOCH_MAX - 1),)),
        ("ready", replace(READY, validation=LARGEST, loss_sum=9e23, tokens=2**30 - 1, relayed=MOST_RELAYED)),
    ],
)
def test_what_members_say_in_their_statuses(field: str, value: Any) -> None:
    """To a leader, which repeats it in Begins, heartbeats and certificates."""
    core = participant(LEADER)
    honest = replace(STATUS, attempt=None, base=None, ready=None, stages=(), copies=(), paths=(), snapshots=())
    events: list[ev.Event] = [said(PEERS[n], replace(honest, **{field: value})) for n in range(1, 4)]
    assert hears(core, *events) == []


@pytest.mark.parametrize("size", [0, 1, REASON_MAX + 1, 20_000])
def test_reasons_are_cut_where_they_are_put_together(size: int) -> None:
    why, unknown = "x" * size, ms.Contact(STRANGER, ("/ip4/1.2.3.4/tcp/1",))
    offer = replace(OFFER, stages=(2,), learn=True, neighbours=(unknown,))
    events = [
        said(LEADER, offer),
        ev.LinkDown(STRANGER, True, why),
        ev.LinkDown(OTHER, True, why),
        said(LEADER, ANY_BEGIN),
        ev.InstallFailed(1, BEGIN.base, None, why),
        ev.StageLost(1, why, True),
        ev.Leave(why),
    ]
    kinds = set()
    for me in (MEMBER, STANDBY):
        core = participant(me)
        effects = [effect for n, event in enumerate(events) for effect in core.handle(event, 1.0 + n / 100)]
        assert wrong(core, effects) == []
        kinds |= {type(effect.message) for effect in effects if isinstance(effect, fx.Send)}
    assert {ms.Suspect, ms.Answer, ms.Resign} <= kinds
    for view in (
        fork(VIEW, MEMBER, 0, PEERS[1:3], why),
        next_view(VIEW, LEADER, (), (), {}, (), why),
        restart(VIEW, LEADER, 0, 9, Version(5, "c", Attempt(3, 1)), 4, why),
    ):
        assert well_formed(view, SETTINGS)


def test_a_leader_with_very_many_members_says_what_it_waits_for_in_short() -> None:
    crowd = tuple(Peer(f"peer number {number}", 1) for number in range(500))
    core = participant(LEADER)
    view = replace(VIEW, number=4, holders=(VIEW.holders[0], crowd, *VIEW.holders[2:]), voters=(LEADER,))
    core.install(view)
    assert len(core.waiting()) > REASON_MAX
    assert wrong(core, core.handle(ev.Wake(), 1.0)) == []


def test_a_heartbeat_with_more_than_may_be_repeated_is_not_let_in() -> None:
    assert refused(LEADER, replace(LEADS, waiting="x" * REASON_MAX)) == ""
    assert refused(LEADER, replace(LEADS, waiting="x" * (REASON_MAX + 1)))


@pytest.mark.parametrize(
    "kept",
    [
        Snapshot(1, Version(5, "c", Attempt(EPOCH_MAX, 0)), "d", 0),
        Snapshot(1, Version(5, "c", Attempt(3, EPOCH_MAX)), "d", 0),
        Snapshot(1, Version(5, "c", Attempt(3, 1)), "d", EPOCH_MAX),
    ],
)
@pytest.mark.parametrize("me", [MEMBER, STANDBY], ids=["member", "standby"])
def test_a_snapshot_of_what_a_leader_named_is_told_only_where_it_is_believed(kept: Snapshot, me: Peer) -> None:
    core = participant(me)
    assert hears(core, ev.Snapshots((kept,))) == []


def test_a_ballot_that_nobody_can_outbid_makes_nobody_go_on_counting() -> None:
    balloting = Balloting(MEMBER, VIEW)
    balloting.on_outbid(OTHER, ms.Outbid("line", 4, ms.Ballot(BALLOTS_MAX - 1, OTHER)))
    view = replace(VIEW, number=4, previous=VIEW.digest(), leader=MEMBER)
    sent = [effect.message for effect in balloting.propose(view, 1.0) if isinstance(effect, fx.Send)]
    assert [refused(MEMBER, message) for message in sent if refused(MEMBER, message)] == []


@pytest.mark.parametrize("step", [0, 1, STEPS])
def test_what_the_directory_shows_may_be_shown(step: int) -> None:
    version = Version(step, "c" * NAME_MAX, Attempt(LAST, LAST))
    stages = range(STAGES)
    shown = Presence(
        STRANGER, ("/ip4/127.0.0.1/tcp/1",), "l" * NAME_MAX, LAST, LAST, True, tuple(stages),
        tuple((stage, version) for stage in stages), tuple((stage, version) for stage in stages), LARGEST,
    )  # fmt: skip
    assert sensible_presence(shown, SETTINGS)
    for me in (LEADER, MEMBER, STANDBY):
        assert hears(participant(me), ev.Directory((shown,), ())) == []


TEMPLATES = (
    BEGIN, ANY_BEGIN, ANY_BEGIN, BEAT, STATUS, READY, OFFER, PROMISE, ms.Certificate(VIEW, True, ()),
    ms.Resign("line", 3, (1,), False, False, ""), ms.Poisoned("line", 3, 6, Attempt(3, 1), 1, 0, ""),
    ms.Suspect("line", 3, MEMBER, "silent", ""), ms.Share("line", 3, 6, Attempt(3, 1), 1, (), "s"),
    ms.Judge("line", 3, 6, Attempt(3, 1), 1, 0, LEADER, MEMBER, 2, ms.Share("line", 3, 6, Attempt(3, 1), 2, ((0, 2),))),
    ms.Poisoned("line", 3, 6, Attempt(3, 1), 1, 0, "", MEMBER, 1.0, beside=2),
    ms.Outbid("line", 4, ms.Ballot(3, LEADER)), WAITS, ms.Doubted("line", 3, 6, Attempt(3, 1), 1, MEMBER),
)  # fmt: skip


def lie(chance: Random, turn: int) -> ms.Message:
    """Something that is nearly what an honest member would say."""
    message: Any = chance.choice(TEMPLATES)
    fields = [(name, hint) for name, hint in fields_of(type(message)) if name not in ("lineage", "view")]
    for name, hint in chance.sample(fields, chance.choice([0, 1, 1, 2])):
        message = replace(message, **{name: some(hint, chance)})
    if isinstance(message, ms.Begin):
        learners = tuple((chance.randrange(STAGES), chance.choice(PEERS)) for _ in range(chance.randrange(5)))
        base = replace(message.base, step=message.step - 1)
        message = replace(message, base=base, attempt=Attempt(3, turn), learners=learners)
    return message  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(8))
def test_honest_members_are_never_struck_for_what_a_liar_made_them_say(seed: int) -> None:
    """The liar is the leader, or a member. What honest peers say reaches the others."""
    chance = Random(seed)
    liar = LEADER if seed % 2 else MEMBER
    cores = {peer: participant(peer) for peer in PEERS if peer != liar}
    on_their_way: list[tuple[Peer, Peer, ms.Message]] = []
    now = 1.0
    for turn in range(150):
        now += chance.choice([0.01, 0.05, 0.3, 1.0])
        arrived, on_their_way = on_their_way[:200], []
        for me, core in cores.items():
            events: list[ev.Event] = [said(sender, message) for sender, to, message in arrived if to == me]
            message = lie(chance, turn)
            if refused(liar, message) == "" and not isinstance(message, ms.Boundary):
                events.append(said(liar, message))
            for event in (*events, ev.Wake()):
                effects = core.handle(event, now)
                assert wrong(core, effects) == []
                sent = [effect for effect in effects if isinstance(effect, fx.Send)]
                on_their_way += [(me, each.to, each.message) for each in sent if each.to in cores]
