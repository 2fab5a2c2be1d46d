"""Who answers for a manifest: the author's key signs it, and every node checks that before it joins.

The key lies beside the identities of a home, in the same format, and is made at the first signature. It is not a
node's identity: a run outlives the machine that it was first joined from.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from ftnode.node.home.identity import Identity, take_only, verify
from ftnode.protocol.manifest.parse import CONFIGURATION, Manifest, as_toml, parse, read_format, render
from ftnode.protocol.manifest.sections import FORMAT, MESSAGE_PATTERN
from ftnode.protocol.manifest.signature import Signature, read_signature, with_signature
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import NO_ORDER, RollbackOrder

AUTHOR_KEY: Final = "author"


def author_key(home: Path) -> Identity:
    """The author's key of this home, made when there is none; to be released. Raises UserError."""
    return take_only(home, AUTHOR_KEY)


def signer(manifest: Manifest, text: str, source: str = "manifest") -> str:
    """PeerId of the author whose signature `text` carries; "" when it carries none.

    Raises UserError (78) when there is one that does not fit.
    """
    signature = read_signature(text, source)
    if signature is None:
        return ""
    author = manifest.run.author
    if not author:
        raise UserError(f"{source} is signed but names no run.author; sign it again: ftnode run sign", CONFIGURATION)
    if signature.run_id != manifest.run_id:
        raise UserError(
            f"{source} was changed after it was signed: the signature is for run {signature.run_id[:8]}, these values "
            f"make run {manifest.run_id[:8]}; get the signed file again, or sign your own run: ftnode run sign",
            CONFIGURATION,
        )
    if not verify(author, manifest.signed_bytes, signature.signature):
        raise UserError(
            f"the signature of {source} is not that of its author {author} over these values: it was changed or signed "
            "by another key; if you are the author: ftnode run sign, else get the signed file again", CONFIGURATION,
        )  # fmt: skip
    return author


def sign(text: str, key: Identity, source: str = "manifest") -> str:
    """The text with the key's signature. An empty run.author becomes the key's owner; `membership.revision` rises when
    an earlier signature was for the same run with others in it.

    Raises UserError: 78 when the manifest is wrong, 77 when it has another author.
    """
    manifest = parse(text, source)
    if not manifest.run.author:
        text = _with_value(text, "run", "author", f'"{key.peer_id}"', source)
        manifest = parse(text, source)
    if manifest.run.author != key.peer_id:
        raise UserError(
            f"{source} belongs to the author {manifest.run.author}, this machine's author key is {key.peer_id}; only "
            'the author can sign it. For a run of your own, set run.author = ""', 77,
        )  # fmt: skip
    before = read_signature(text, source)
    if before is not None and before.run_id == manifest.run_id:
        if verify(key.peer_id, manifest.signed_bytes, before.signature):
            return text
        text = _with_value(text, "membership", "revision", str(manifest.membership.revision + 1), source)
        manifest = parse(text, source)
    return with_signature(text, Signature(manifest.run_id, key.sign(manifest.signed_bytes)))


def announce(text: str, message: str, key: Identity, source: str = "manifest") -> str:
    """The signed text with this message of its author, and signed again. A manifest of an earlier format is written
    anew, without its comments; its run stays the same.

    Raises UserError: 64 for a message that is none, 77 when the manifest is not this author's, 78 when it is wrong.
    """
    manifest = parse(text, source)
    if manifest.run.author != key.peer_id or not signer(manifest, text, source):
        raise UserError(
            f"{source} is not signed by this machine's author key {key.peer_id}; only its author announces", 77
        )
    if not re.fullmatch(MESSAGE_PATTERN, message):
        raise UserError(
            "a message is one line of at most 280 characters, without control characters; write a shorter one"
        )
    if message == manifest.membership.message:
        return text
    changed = replace(manifest, membership=replace(manifest.membership, message=message))
    if read_format(text) < FORMAT:
        before = read_signature(text, source)
        assert before is not None
        return sign(with_signature(render(changed), before), key, source)
    return sign(_with_value(text, "membership", "message", as_toml(message), source), key, source)


def order_rollback(text: str, step: int, key: Identity, source: str = "manifest", after: int = 0) -> str:
    """The signed text with the author's order to go back to a snapshot of `step` or an earlier one, and signed again.
    Each call is another order. `after`: the number of the newest order that the swarm knows, which members may have
    given; this one is later, and its number is even, as those of members are odd. A manifest of an earlier format is
    written anew, as by `announce`.

    Raises UserError: 77 when the manifest is not this author's, 78 when it is wrong.
    """
    manifest = parse(text, source)
    before = read_signature(text, source)
    if manifest.run.author != key.peer_id or not signer(manifest, text, source) or before is None:
        raise UserError(
            f"{source} is not signed by this machine's author key {key.peer_id}; only its author orders a rollback", 77
        )
    revision = max(manifest.membership.revision, after) | 1  # signing makes it the order's number
    if read_format(text) < FORMAT:
        section = replace(manifest.membership, revision=revision, rollback_order=revision + 1, rollback_to=step)
        return sign(with_signature(render(replace(manifest, membership=section)), before), key, source)
    for name, value in (("revision", revision), ("rollback_order", revision + 1), ("rollback_to", step)):
        text = _with_value(text, "membership", name, str(value), source)
    return sign(text, key, source)


def order_of(manifest: Manifest) -> RollbackOrder:
    """The author's newest order to roll back; none where the run has no author, who alone can give one."""
    membership = manifest.membership
    return RollbackOrder(membership.rollback_order, membership.rollback_to) if manifest.run.author else NO_ORDER


def _with_value(text: str, section: str, name: str, value: str, source: str) -> str:
    """The text with one key's line rewritten; a comment behind the value stays."""
    pattern = (
        rf"(?ms)^([ \t]*\[[ \t]*{section}[ \t]*\](?:(?!^[ \t]*\[).)*?^[ \t]*{name}[ \t]*=[ \t]*)"
        r"(\"(?:[^\"\\\n]|\\.)*\"|\w+)"
    )
    changed, count = re.subn(pattern, lambda found: found[1] + value, text, count=1)
    if not count:
        raise UserError(
            f"{source}: cannot set {section}.{name} by itself; write the line `{name} = {value}` below [{section}], "
            "with format = 4 or later, and sign again", CONFIGURATION,
        )  # fmt: skip
    return changed
