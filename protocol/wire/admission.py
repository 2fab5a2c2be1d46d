"""What strangers and members may say at all: ranges, sizes, and who may speak of what.

The codec has checked types, and that floats are finite. This checks sense, once and for every message and record of the
directory, before any role looks at it: a stage exists, a view has as many holders as the run has stages, numbers stay
where they can be written again, and so do their sums. What fails is dropped; nothing in it can reach an index, a table
or a Begin of ours.

Much of what a peer says it has heard from others. Whatever is let in here must therefore be let in again when it is
repeated, wherever that is done, or a liar could make honest peers look like liars (test_said_again.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.records import NAME_MAX, TOLD_MAX, Presence, could_be_kept, sensible
from ftnode.protocol.words.settings import HEAD_KEEPERS, LENT_REMEMBERED, LENT_TOLD, Settings
from ftnode.protocol.words.site import SITE_MAX
from ftnode.protocol.words.types import (
    CREDITED_MAX,
    RELAYS_TOLD_MAX,
    Attempt,
    Copied,
    Credit,
    Given,
    LentCopy,
    Peer,
    Recovered,
    Version,
    steps_of,
)
from ftnode.protocol.words.view import View

NUMBER_MAX: Final = 2**48
BALLOTS_MAX: Final = 2**32
ORDERS_MAX: Final = 2**31 - 3
"""Number of an order of members, which is odd: a manifest's revision can be higher, so that its author has the last
word."""
LOSS_MAX: Final = 1e30
READY_LOSS_MAX: Final = 1e24
READY_TOKENS_MAX: Final = 2**30
"""Of one Ready, so that what all members say together, 257 * 512 at most, is a Commit that everybody lets in."""
SECONDS_MAX: Final = 1e9
EXACT_PER_STAGE: Final = 3
"""What may be announced of a stage: the weights, what the attempt in progress makes of them, and what one that was left
would."""
GROUP_MAX: Final = 512
"""Holders of one stage, and voters; beyond about 400 holders views would have to be hierarchical."""
LISTED_MAX: Final = 64
BETWEEN_MAX: Final = 8
"""Views that come along with a certificate."""
SIGNATURE_MAX: Final = 88
"""64 bytes of Ed25519 in base64."""
HOLDINGS_MAX: Final = 4096
"""Places of a view, of all stages and the voters. With names of PEER_ID_MAX letters they are a quarter of a frame."""
ADDRESSES_MAX: Final = 32
ADDRESS_TEXT_MAX: Final = 512
ADDRESSES_BYTES_MAX: Final = 4096
"""Of one peer. Those of a node are 16 at most, with its card."""
CONTACTS_BYTES_MAX: Final = 1 << 18
"""Of all peers in one message of ours, each with its part of it: a frame must hold what many have said."""
WAITS_ON_GROUPS_MAX: Final = 8
"""Of how many members of groups one peer says that it waits for them."""
PEER_ID_MAX: Final = 64
SHOWN_MAX: Final = 64
"""Tensors that one peer asks another for at once."""
DIGEST_MAX: Final = 64
"""32 bytes in hex."""
GIVEN_MAX: Final = 4096
"""Tensors of which one peer tells another at once what their makers showed."""
DISTANCE_MAX: Final = 1e30
CREDIT_SECONDS_MAX: Final = 1e12
JUDGES_MAX: Final = 3
"""Of a case."""
REASON_MAX: Final = 2500
"""A view's reason names everybody that comes and goes. Whoever puts words of others together cuts them to it."""


def objection(sender: Peer, message: ms.Message, view: View | None, settings: Settings) -> str:
    """Why `message` must be dropped; empty when it makes sense. `view` is the one that we go by."""
    return "" if _makes_sense(sender, message, view, settings) else f"a {type(message).__name__} out of range"


def _makes_sense(sender: Peer, message: ms.Message, view: View | None, settings: Settings) -> bool:
    match message:
        case ms.Heartbeat():
            return _heartbeat(message, settings)
        case ms.Stored() | ms.Poll() | ms.PollReply():
            return True
        case ms.Boundary():
            return all(seal is None or _seal(seal) for seal in (message.seal, message.admitted))
        case ms.Certificate():
            return _certificate(message, settings)
        case ms.Introduction():
            return message.presence.peer == sender and sensible_presence(message.presence, settings)
        case ms.Suspect():
            return _suspect(message)
        case ms.Offer():
            return _offer(message, settings)
        case ms.Answer():
            return _listed(message, settings) and set(message.exact) <= set(message.stages)
        case ms.Resign():
            return _listed(message, settings) and message.seconds <= NUMBER_MAX and message.bytes_per_second >= 0
        case ms.Prepare() | ms.Promise() | ms.Propose() | ms.Accepted() | ms.Outbid():
            return _ballot(sender, message, settings)
        case ms.Status():
            return _status(sender, message, view, settings)
        case ms.Share():
            return _share(message, settings)
        case ms.Ready():
            return _ready(sender, message, view, settings)
        case ms.Begin():
            return _begin(message, settings) and _can_begin(message, view)
        case ms.Poisoned():
            return _poisoned(message, settings)
        case ms.Waits():
            return _waits(message, settings)
        case ms.Show():
            return _show(message)
        case ms.WasGiven():
            return len(message.other) <= 1 and all(_sealed(each, settings) for each in message.other)
        case ms.Saved():
            return len(message.snapshots) <= TOLD_MAX and all(sensible(kept, settings) for kept in message.snapshots)
        case ms.Doubted():
            known = _number(message.stage, settings.stage_count) and _number(message.step)
            return known and _attempt(message.attempt)
        case ms.Judge():
            return _judge(message, settings)
        case ms.Verdict():
            return _verdict(message, settings)
        case ms.Convicted():
            return sensible_words(message, settings)
        case ms.Rolled():
            return sensible_roll(message.roll, settings)
        case ms.UndoVote():
            return _undo_vote(message, settings)


def well_formed(view: View, settings: Settings) -> bool:
    """A view of this run that every part of the core can work with."""
    groups = (*view.holders, view.voters)
    return (
        view.run == settings.run
        and len(view.holders) == len(view.epochs) == settings.stage_count
        and 0 <= view.number < NUMBER_MAX
        and 0 <= view.lineage.forks < NUMBER_MAX
        and 0 <= view.lineage.order < NUMBER_MAX
        and all(0 <= epoch <= view.number for epoch in view.epochs)
        and all(len(set(group)) == len(group) <= GROUP_MAX for group in groups)
        and sum(map(len, groups)) <= HOLDINGS_MAX
        and all(len(peer.id) <= PEER_ID_MAX and peer.id.isascii() for group in groups for peer in group)
        and view.leader in view.voters
        and set(view.voters) <= set(view.members())
        and len(view.reason) <= REASON_MAX
        and (not view.omitted or _omitted(view, settings))
        and max(len(view.lineage.id), len(view.lineage.root)) <= NAME_MAX
        and (view.lineage.start is None or could_be_kept(view.lineage.start, settings))
    )


def _omitted(view: View, settings: Settings) -> bool:
    """Nobody holds what routes leave out, and enough stays."""
    listed = view.omitted
    in_order = listed == tuple(sorted(set(listed)))
    return in_order and settings.may_leave_out(listed) and not any(view.holders[stage] for stage in listed)


def sensible_presence(presence: Presence, settings: Settings) -> bool:
    """A record of the directory that every part of the core can work with."""
    exact = presence.exact
    return (
        -1 <= presence.view < NUMBER_MAX
        and _number(presence.capacity)
        and presence.tokens_per_second >= 0
        and len(presence.lineage) <= NAME_MAX
        and _stages(presence.refuses, settings)
        and len(exact) <= EXACT_PER_STAGE * settings.stage_count
        and all(_number(stage, settings.stage_count) and _kept(version, settings) for stage, version in exact)
        and _stages((stage for stage, _ in presence.copies), settings)
        and all(_kept(version, settings) for _, version in presence.copies)
        and len(presence.site) <= SITE_MAX
        and len(presence.snapshots) <= TOLD_MAX
        and all(sensible(snapshot, settings) for snapshot in presence.snapshots)
    )


def sensible_roll(roll: ms.Roll, settings: Settings) -> bool:
    """A roll that every part of the core can work with."""
    return (
        well_formed(roll.view, settings)
        and could_be_kept(roll.version, settings)
        and len(roll.digests) == settings.stage_count
        and all(len(digest) <= NAME_MAX for digest in roll.digests)
        and _signatures(roll.signed)
        and roll.signers() <= set(roll.view.members())
    )


def sensible_order(order: ms.MembersOrder, settings: Settings) -> bool:
    """An order of members that every part of the core can work with."""
    return (
        well_formed(order.view, settings)
        and _order_number(order.number)
        and 0 <= order.step <= settings.steps
        and _signatures(order.signed)
        and order.signers() <= set(order.view.voters)
    )


def _order_number(number: int) -> bool:
    return 0 < number <= ORDERS_MAX and number % 2 == 1


def _undo_vote(vote: ms.UndoVote, settings: Settings) -> bool:
    known = ms.NO_STEP <= vote.step <= settings.steps and _order_number(vote.number) and _number(vote.serial)
    return known and len(vote.digest) <= DIGEST_MAX and len(vote.signature) <= SIGNATURE_MAX


def sensible_words(case: ms.Convicted, settings: Settings) -> bool:
    """Of whom, and what about: the core can work with that."""
    words = [verdict for _, verdict in case.verdicts]
    sane = len(words) <= JUDGES_MAX and _poisoned(case.accusation, settings)
    proven = len(case.proof) in (0, 2) and all(_sealed(each, settings) for each in case.proof)
    return sane and proven and all(_verdict(word, settings) for word in words)


def usable_addresses(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """As many as are worth remembering of one peer. Multiaddrs and cards have ASCII letters alone."""
    fit = [each for each in addresses[:ADDRESSES_MAX] if len(each) <= ADDRESS_TEXT_MAX and each.isascii()]
    sizes = accumulate(map(len, fit))
    return tuple(address for address, size in zip(fit, sizes) if size <= ADDRESSES_BYTES_MAX)


def told_addresses(known: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """What one message says of those that are known of each of several peers: all of them, since a card is for the
    whole list, or none where they take more than their part."""
    room = CONTACTS_BYTES_MAX // max(1, len(known))
    return (addresses if sum(map(len, addresses)) <= room else () for addresses in known)


def _number(value: int, limit: int = NUMBER_MAX) -> bool:
    return 0 <= value < limit


def _stages(stages: Iterable[int], settings: Settings) -> bool:
    listed, count = list(stages), settings.stages + 1
    if len(listed) == 1:
        return 0 <= listed[0] < count
    return len(set(listed)) == len(listed) and all(0 <= stage < count for stage in listed)


def _attempt(attempt: Attempt | None) -> bool:
    return attempt is None or (-1 <= attempt.view < NUMBER_MAX and _number(attempt.n))


def _version(version: Version | None) -> bool:
    return version is None or (_number(version.step) and len(version.commit) <= NAME_MAX and _attempt(version.attempt))


def _kept(version: Version, settings: Settings) -> bool:
    return version.step <= settings.steps and _version(version)


def _commits(commits: tuple[ms.Commit, ...], settings: Settings) -> bool:
    return len(commits) <= LISTED_MAX and credible(commits, settings)


def credible(commits: Iterable[ms.Commit], settings: Settings) -> bool:
    """Whether these can be commits of the run at all."""
    return all(
        0 <= commit.step <= settings.steps
        and _number(commit.tokens)
        and abs(commit.loss) < LOSS_MAX
        and 0 <= commit.seconds < SECONDS_MAX
        and len(commit.norms) <= settings.stage_count
        and all(norm >= 0 for norm in commit.norms)
        and (not commit.recoveries or _recoveries(commit.recoveries, settings))
        and (not commit.given or _given(commit.given, settings))
        for commit in commits
    )


def _recoveries(recoveries: tuple[Recovered, ...], settings: Settings) -> bool:
    return _stages([told.stage for told in recoveries], settings) and all(
        0 <= told.seconds < SECONDS_MAX for told in recoveries
    )


def _given(rows: tuple[Given, ...], settings: Settings) -> bool:
    """Together no more than a step takes: a microbatch visits the head twice."""
    whole = settings.microbatches * (settings.stages + 2)
    sums = settings.stage_count * sum(row.held for row in rows)
    return (
        _credited([row.peer for row in rows], CREDITED_MAX)
        and all(min(row.visits, row.relayed) >= 0 and 0 <= row.rebuilt <= settings.stage_count for row in rows)
        and sum(row.visits for row in rows) <= whole
        and sum(row.relayed for row in rows) <= settings.received_max(whole, sums)
    )


def sensible_totals(rows: tuple[Credit, ...]) -> bool:
    """Totals of a run, of each peer and of all others together."""
    return _credited([row.peer for row in rows], CREDITED_MAX + 1) and all(
        all(map(_number, (row.visits, row.rebuilt, row.relayed))) and 0 <= row.seconds <= CREDIT_SECONDS_MAX
        for row in rows
    )


def _credited(peers: list[str], limit: int) -> bool:
    return len(set(peers)) == len(peers) <= limit and all(len(peer) <= PEER_ID_MAX for peer in peers)


def _heartbeat(message: ms.Heartbeat, settings: Settings) -> bool:
    # Most messages are heartbeats, and most heartbeats have nothing in their lists.
    return (
        -1 <= message.view < NUMBER_MAX
        and 0 <= message.step < NUMBER_MAX
        and 0 <= message.busy_seconds < SECONDS_MAX
        and 0 <= message.done < NUMBER_MAX
        and len(message.waiting) <= REASON_MAX
        and (not message.stages or _reports(message.stages, settings))
        and (not message.validation or _validation(message.validation, settings))
        and (not message.commits or _commits(message.commits, settings))
        and (not message.copies or _copied(message.copies, settings))
        and (not message.lent or _lent(message.lent, settings))
    )


def _reports(reports: tuple[ms.StageReport, ...], settings: Settings) -> bool:
    return _stages([report.stage for report in reports], settings) and all(
        -1 <= report.applied < NUMBER_MAX
        and min(report.accumulated, report.queue, report.fetched) >= 0
        and max(report.accumulated, report.queue, report.fetched) < NUMBER_MAX
        and 0 <= report.seconds < SECONDS_MAX
        and 0 <= report.line_seconds < SECONDS_MAX
        and len(report.state) <= NAME_MAX
        for report in reports
    )


def _copies(copies: tuple[tuple[int, int], ...], settings: Settings) -> bool:
    return _stages([stage for stage, _ in copies], settings) and all(_number(step) for _, step in copies)


def _copied(copies: tuple[Copied, ...], settings: Settings) -> bool:
    return _copies(tuple((copy.stage, copy.step) for copy in copies), settings) and all(c.fetched >= 0 for c in copies)


def _lent(copies: tuple[LentCopy, ...], settings: Settings) -> bool:
    """A few of each stage."""
    few = len(copies) <= LENT_TOLD or max(Counter(copy.stage for copy in copies).values()) <= LENT_TOLD
    count = settings.stage_count
    return few and all(
        0 <= copy.stage < count
        and _kept(copy.version, settings)
        and len(copy.keeper) <= PEER_ID_MAX
        and 0 < len(copy.digest) <= NAME_MAX
        for copy in copies
    )


def _validation(entries: tuple[tuple[int, float], ...], settings: Settings) -> bool:
    return len(entries) <= LISTED_MAX and all(0 <= step <= settings.steps for step, _ in entries)


def _certificate(message: ms.Certificate, settings: Settings) -> bool:
    members = set(message.view.members())
    known = all(contact.peer in members for contact in message.contacts)
    between = message.between
    return (
        well_formed(message.view, settings)
        and known
        and 0 <= message.step <= settings.steps
        and (message.proof is None or _proof(message.proof))
        and len(between) <= BETWEEN_MAX
        and all(well_formed(link.view, settings) and _proof(link.proof) for link in between)
        and all(link.view.lineage == message.view.lineage for link in between)
        and (message.roll is None or sensible_roll(message.roll, settings))
        and (message.order is None or sensible_order(message.order, settings))
    )


def _proof(proof: ms.Proof) -> bool:
    return bool(proof.signed) and _signatures(proof.signed) and _number(proof.ballot.number, BALLOTS_MAX)


def _signatures(signed: tuple[ms.Signed, ...]) -> bool:
    """At most one of each."""
    voters = [each.voter for each in signed]
    return len(voters) == len(set(voters)) <= GROUP_MAX and all(len(each.signature) <= SIGNATURE_MAX for each in signed)


def _offer(message: ms.Offer, settings: Settings) -> bool:
    sensible = bool(message.stages) and _stages(message.stages, settings) and _version(message.base)
    return sensible and _number(message.view) and len(message.neighbours) <= GROUP_MAX


def _suspect(message: ms.Suspect) -> bool:
    return message.kind in ("silent", "broken", "stalled") and len(message.detail) <= REASON_MAX


def _listed(message: ms.Answer | ms.Resign, settings: Settings) -> bool:
    return _stages(message.stages, settings) and len(message.reason) <= REASON_MAX


def _ballot(sender: Peer, message: ms.Vote, settings: Settings) -> bool:
    """Only voters speak in an election, each for itself; numbers stay small enough to be counted on."""
    ballot = message.promised if isinstance(message, ms.Outbid) else message.ballot
    own = not isinstance(message, ms.Prepare | ms.Propose) or ballot.proposer == sender
    if not own or not _number(ballot.number, BALLOTS_MAX):
        return False
    if isinstance(message, ms.Promise):
        accepted, before = message.accepted_view, message.accepted_ballot
        if accepted is None or before is None:
            return accepted is None and before is None
        return _number(before.number, BALLOTS_MAX) and well_formed(accepted, settings)
    if isinstance(message, ms.Accepted):
        return len(message.digest) <= NAME_MAX and len(message.signature) <= SIGNATURE_MAX
    return not isinstance(message, ms.Propose) or well_formed(message.view, settings)


def _status(sender: Peer, message: ms.Status, view: View | None, settings: Settings) -> bool:
    versions = (message.base, *(stage.version for stage in message.stages))
    return (
        _stages((stage.stage for stage in message.stages), settings)
        and all(map(_version, versions))
        and all(said is None or said.step <= settings.steps for said in versions)
        and all(map(_attempt, (message.attempt, *(stage.reduced for stage in message.stages))))
        and (message.ready is None or _ready(sender, message.ready, view, settings))
        and len(message.evaluated) <= LISTED_MAX
        and all(0 <= step <= settings.steps for step, _ in message.evaluated)
        and _copies(steps_of(message.copies), settings)
        and all(_version(version) for _, version in message.copies)
        and _commits(message.commits, settings)
        and _paths(message.paths, settings)
        and len(message.snapshots) <= TOLD_MAX
        and all(sensible(snapshot, settings) for snapshot in message.snapshots)
        and len(message.site) <= SITE_MAX
    )


def _paths(paths: tuple[tuple[int, tuple[Peer, ...]], ...], settings: Settings) -> bool:
    """Those of a view that leaves stages out are shorter; see _can_begin."""
    visits = settings.stages + 2
    least = visits - settings.left_out_max
    return all(_number(m, settings.microbatches) and least <= len(path) <= visits for m, path in paths)


def _share(message: ms.Share, settings: Settings) -> bool:
    signed = message.signature is None or len(message.signature) <= SIGNATURE_MAX
    few = len(message.visits) <= 2 * settings.microbatches and len(set(message.visits)) == len(message.visits)
    return signed and few and _number(message.stage, settings.stage_count)


def _claim(share: ms.Share, settings: Settings) -> bool:
    """One that somebody else shows."""
    return bool(share.visits) and _share(share, settings) and _number(share.step) and _attempt(share.attempt)


def _claims(claims: tuple[tuple[Peer, ms.Share], ...], settings: Settings) -> bool:
    """Of each stage together no more than a step takes."""
    visits = Counter[int]()
    for _, share in claims:
        visits[share.stage] += len(share.visits)
    few = all(count <= 2 * settings.microbatches for count in visits.values())
    return few and all(_claim(share, settings) for _, share in claims)


def _ready(sender: Peer, message: ms.Ready, view: View | None, settings: Settings) -> bool:
    """A peer speaks of its own stages, and of those that it learns; which these are, the leader knows."""
    return (
        _stages([result.stage for result in message.results], settings)
        and all(result.norm_squared >= 0 for result in message.results)
        and all(len(result.shares) <= 2 * GROUP_MAX for result in message.results)
        and all(_number(had, 2 * settings.microbatches + 1) for each in message.results for _, had in each.shares)
        and _attempt(message.attempt)
        and _number(message.tokens, READY_TOKENS_MAX)
        and abs(message.loss_sum) < READY_LOSS_MAX
        and (not message.relayed or _relayed(message.relayed))
        and (not message.claims or _claims(message.claims, settings))
    )


def _relayed(rows: tuple[tuple[str, int], ...]) -> bool:
    peers = [peer for peer, _ in rows]
    return _credited(peers, RELAYS_TOLD_MAX) and all(peers) and all(_number(count) for _, count in rows)


def _begin(message: ms.Begin, settings: Settings) -> bool:
    installs, shared = message.installs, [m for _, share in message.shares for m in share]
    return (
        message.step == message.base.step + 1
        and 0 <= message.base.step <= settings.steps
        and _version(message.base)
        and _attempt(message.attempt)
        and message.training == (message.base.step < settings.steps)
        and 1 <= message.window <= NUMBER_MAX
        and len(installs) <= settings.stage_count * GROUP_MAX
        and all(_number(plan.stage, settings.stage_count) and 0 < plan.rate_factor <= 10 for plan in installs)
        and all(_number(donor.stage, settings.stage_count) for plan in installs for donor in plan.donors)
        and all(plan.copy is None or 0 <= plan.copy.step <= message.base.step for plan in installs)
        and all(len(plan.digest) <= NAME_MAX for plan in installs)
        and all(
            len(plan.told) <= LENT_REMEMBERED and max(map(len, plan.told), default=0) <= NAME_MAX for plan in installs
        )
        and len(set(shared)) == len(shared)
        and all(_number(m, settings.microbatches) for m in shared)
        and _paths(message.paths, settings)
        and len(set(message.learners)) == len(message.learners) <= GROUP_MAX
        and all(_number(stage, settings.stage_count) for stage, _ in message.learners)
        and _commits(message.commits, settings)
        and (not message.credits or sensible_totals(message.credits))
        and len(set(message.keepers)) == len(message.keepers) <= HEAD_KEEPERS + settings.stages
        and all(_number(stage, settings.stage_count) for stage, _ in message.keepers)
        and (not message.lent or _lent(message.lent, settings))
    )


def _can_begin(message: ms.Begin, view: View | None) -> bool:
    """Of a view with an empty stage nothing begins but the end of the run, which nobody computes or learns anything in:
    a path, and who lends weights, are chosen among the holders of each stage. Of a stage that is left out nobody
    learns anything, and paths have no visit there. Nobody learns what it holds, and would be in its group twice."""
    if view is None or (message.lineage, message.view) != (view.lineage.id, view.number):
        return True
    visits = len(view.holders) + 1 - len(view.omitted)
    if any(len(path) != visits for _, path in message.paths):
        return False
    if any(stage in view.omitted or peer in view.holders[stage] for stage, peer in message.learners):
        return False
    return not view.vacancies() or not (message.training or message.evaluate or message.learners)


def _poisoned(message: ms.Poisoned, settings: Settings) -> bool:
    known = _number(message.stage, settings.stage_count) and 0 <= message.distance <= DISTANCE_MAX
    return known and len(message.reason) <= REASON_MAX and _beside(message, settings)


def _beside(message: ms.Poisoned | ms.Judge, settings: Settings) -> bool:
    """It is about a visit of one of the step's own microbatches, or about none."""
    visits = settings.stages + 2
    return message.beside == -1 or (
        _number(message.beside, visits) and _number(message.microbatch, settings.microbatches)
    )


def _seal(seal: ms.Seal) -> bool:
    return len(seal.digest) <= DIGEST_MAX and len(seal.signature) <= SIGNATURE_MAX


def _sealed(tensor: ms.SealedTensor, settings: Settings) -> bool:
    known = _number(tensor.microbatch, settings.microbatches) and _number(tensor.visit, settings.stages + 2)
    return known and _seal(tensor.seal)


def _show(message: ms.Show) -> bool:
    few = len(message.tensors) + len(message.taken) <= SHOWN_MAX and len(message.given) <= GIVEN_MAX
    return few and all(len(digest) <= DIGEST_MAX for *_, digest in message.given) and _attempt(message.attempt)


def _judge(message: ms.Judge, settings: Settings) -> bool:
    known = _number(message.stage, settings.stage_count) and ms.UNSHOWN <= message.microbatch < settings.microbatches
    claimed = message.claim is None or _claim(message.claim, settings)
    return known and claimed and _beside(message, settings) and _number(message.step) and _attempt(message.attempt)


def _verdict(message: ms.Verdict, settings: Settings) -> bool:
    return _judge(message.about, settings) and len(message.reason) <= REASON_MAX


def _waits(message: ms.Waits, settings: Settings) -> bool:
    """At most one of each microbatch, and a few of groups."""
    whole = settings.microbatches + settings.evaluation_microbatches
    named = [wait.microbatch for wait in message.on if wait.microbatch >= 0]
    return (
        len(set(named)) == len(named)
        and len(message.on) - len(named) <= WAITS_ON_GROUPS_MAX
        and all(-1 <= wait.microbatch < whole for wait in message.on)
        and all(_number(wait.visit, settings.stages + 2) for wait in message.on)
        and all(_number(wait.visit, settings.stage_count) for wait in message.on if wait.microbatch < 0)
        and _number(message.step)
        and _attempt(message.attempt)
    )
