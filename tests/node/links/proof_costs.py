"""What the proof of a view costs: `python -m tests.node.links.proof_costs`.

Bytes are those of frames on the wire. A quorum has signed: more than half of the members, all of which vote.
"""

from __future__ import annotations

import time
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.home.identity import peer_id_of
from ftnode.node.links.seals import Seals
from ftnode.protocol.wire.frames import encode_frame
from ftnode.protocol.words.messages import Ballot, Certificate, Contact, Heartbeat, Proof, Signed
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View

SIZES = (8, 64, 400)
STAGES = 8
ADDRESSES = ("/ip4/203.0.113.17/tcp/41234", "/ip4/192.168.1.23/tcp/41234")


def costs(members: int) -> dict[str, float]:
    """Bytes, and milliseconds of a processor, for a view with so many members."""
    keys = [Ed25519PrivateKey.generate() for _ in range(members)]
    peers = [Peer(peer_id_of(key.public_key().public_bytes_raw()), 2**47 + n) for n, key in enumerate(keys)]
    holders = tuple(tuple(peers[stage::STAGES]) for stage in range(STAGES))
    view = View("r" * 64, Lineage("0123456789abcdef", 0, STAGES), 1000, "p" * 32, peers[0], holders, tuple(peers),
                (900,) * STAGES, "somebody comes")  # fmt: skip
    ballot, count = Ballot(0, peers[0]), members // 2 + 1
    began = time.process_time()
    shown = Certificate(view, True, tuple(Contact(peer, ADDRESSES) for peer in peers), 5000,
                        Proof(ballot, tuple(Signed(peer, "") for peer in peers[:count])))  # fmt: skip
    for peer, key in zip(peers[:count], keys, strict=False):
        sealed = Seals(peer, key.sign).sealed(shown)
        assert isinstance(sealed, Certificate)
        shown = sealed
    signing = (time.process_time() - began) / count
    receiver, times = Seals(peers[-1]), list[float]()
    for _ in range(2):
        began = time.process_time()
        receiver.check(peers[0], shown)
        times.append(time.process_time() - began)
    beat = Heartbeat(view.lineage.id, 1000, True, 5000, (), 1.0, False, (), (), "", ())
    return {
        "members": members,
        "certificate": len(encode_frame(replace(shown, proof=None))),
        "with proof": len(encode_frame(shown)),
        "heartbeat": len(encode_frame(beat)),
        "sign ms": 1000 * signing,
        "verify ms": 1000 * times[0],
        "again ms": 1000 * times[1],
    }


def main() -> None:
    for members in SIZES:
        print(", ".join(f"{name} {value:.5g}" for name, value in costs(members).items()))


if __name__ == "__main__":
    main()
