"""A hivemind DHT node on the p2pd of its node, with another door. The only file that imports hivemind.

What differs from hivemind as it comes: storage and everything that reads strangers' bytes is `record_store.py`, a
node's place in the DHT is the hash of its PeerId and checked, and there is no cache (a record of a dead peer must be
gone when it expires). What is read goes to the store, like what others store here. The wire is hivemind's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from typing import Any

import hivemind.dht.node
import hivemind.dht.protocol
from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2P, P2PContext, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.multiaddr import Multiaddr
from hivemind.utils.timed_storage import ValueWithExpiration

from ftnode.node.directory.record_store import (
    KEY_BYTES,
    RecordStore,
    check,
    key_hash,
    place_of,
    read_dictionary,
    read_subkey,
    unwrap,
    wrap,
)
from ftnode.node.home.identity import verify
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

ITEMS_PER_REQUEST_MAX = 64
ANSWER_BYTES_MAX = 3 << 20
"""Of records; p2pd carries four."""
REPLICAS = 5
BUCKET = 20
RPC_SECONDS = 2.0
"""A neighbour that does not answer for so long is dropped from the routing table."""

_answered: ContextVar[list[str] | None] = ContextVar("answered", default=None)
"""Who has answered what is asked by this task, or by one that it began."""


def now_ms() -> int:
    return int(time.time() * 1000)


class HivemindStorage:
    """A RecordStore in the shape of hivemind's DHTLocalStorage."""

    def __init__(self, maxsize: int | None = None) -> None:
        self.records = RecordStore(verify)

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: str | None = None) -> bool:
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        try:
            record = unwrap(value)
        except PeerError as error:
            refused = str(error)
        else:
            refused = self.records.put(key.to_bytes(), subkey, record, expiration_time, now_ms())
        if refused:
            log.info("record of %s refused: %s", str(subkey)[:60], refused)
        return not refused

    def get(self, key: DHTID) -> ValueWithExpiration[Any] | None:
        """A fresh dictionary: hivemind merges what it finds elsewhere into the one that it gets here."""
        items = self.records.read(key.to_bytes(), now_ms())
        return to_dictionary([(subkey, wrap(item.record), item.expires_ms / 1000) for subkey, item in items.items()])

    def items(self) -> Iterator[tuple[DHTID, ValueWithExpiration[Any]]]:
        for key in self.records.all(now_ms()):
            value = self.get(DHTID.from_bytes(key))
            if value is not None:
                yield DHTID.from_bytes(key), value

    def __contains__(self, key: DHTID) -> bool:
        return self.get(key) is not None


def to_dictionary(items: list[tuple[str, bytes, float]]) -> ValueWithExpiration[Any] | None:
    if not items:
        return None
    dictionary = DictionaryDHTValue()
    for subkey, value, expiration in items:
        dictionary.store(subkey, value, expiration)
    return ValueWithExpiration(dictionary, dictionary.latest_expiration_time)


def check_keys(keys: Collection[bytes]) -> None:
    if len(keys) > ITEMS_PER_REQUEST_MAX or any(len(key) != KEY_BYTES for key in keys):
        raise PeerError("a request with too many keys, or with what is none")


class DirectoryProtocol(DHTProtocol):  # type: ignore[misc]
    """hivemind's protocol with another door. Its RPCs keep their names on the wire."""

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        return f"DHTProtocol.{method_name}" if namespace is None else f"{namespace}::DHTProtocol.{method_name}"

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        sizes = {len(request.keys), len(request.subkeys), len(request.values), len(request.expiration_time)}
        if len(sizes) != 1:
            raise PeerError("a store request that is out of shape")
        check_keys(request.keys)
        self._acquaint(request.peer, context)
        cached = [*request.in_cache, *[False] * len(request.keys)]
        response = dht_pb2.StoreResponse(store_ok=[], peer=self.node_info)
        for key, tag, value, expiration, in_cache in zip(
            request.keys, request.subkeys, request.values, request.expiration_time, cached
        ):
            response.store_ok.append(not in_cache and self._store_one(key, tag, value, expiration))
        return response

    def _store_one(self, key: bytes, tag: bytes, value: bytes, expiration: float) -> bool:
        try:
            if tag == self.IS_DICTIONARY:
                items = read_dictionary(value)
            else:
                items = [(read_subkey(tag), value, expiration)]
        except PeerError as error:
            log.info("store refused: %s", error)
            return False
        place = DHTID.from_bytes(key)
        refused = [item for item in items if not self.storage.store_subkey(place, *item)]
        return not refused

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        check_keys(request.keys)
        if sum(self.storage.records.size(key) for key in request.keys) > ANSWER_BYTES_MAX:
            raise PeerError("a request for more than an answer holds")
        return await super().rpc_find(request, context)

    def _acquaint(self, node: dht_pb2.NodeInfo, context: P2PContext) -> None:
        if node.node_id:
            keep(self.update_routing_table(DHTID.from_bytes(node.node_id[:KEY_BYTES]), context.remote_id))

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        if responded and node_id != DHTID.from_bytes(place_of(peer_id.to_bytes())):
            return  # it stands where it would like to be, or is a client: it may ask, but stores nothing for others
        await super().update_routing_table(node_id, peer_id, responded)

    async def call_find(self, peer: PeerID, keys: Collection[DHTID]) -> dict[DHTID, Any] | None:
        """As hivemind's, but keeps the good records of a dictionary that has bad ones, and unpacks with our reader."""
        keys = list(keys)
        request = dht_pb2.FindRequest(keys=[key.to_bytes() for key in keys], peer=self.node_info)
        try:
            async with self.rpc_semaphore:
                response = await self.get_stub(peer).rpc_find(request, timeout=self.wait_timeout)
            if len(response.results) != len(keys):
                raise PeerError("an answer to another question")
        except Exception as error:  # noqa: BLE001 - RPCs raise whatever went wrong on either side
            log.info("peer %s did not answer: %s", peer, error)
            keep(self.update_routing_table(self.routing_table.get(peer_id=peer), peer, responded=False))
            return None
        answered = _answered.get()
        if answered is not None:
            answered.append(str(peer))
        if response.peer.node_id:
            keep(self.update_routing_table(DHTID.from_bytes(response.peer.node_id[:KEY_BYTES]), peer))
        return {key: (self._found(key, result), self._nearest(result)) for key, result in zip(keys, response.results)}

    def _found(self, key: DHTID, result: dht_pb2.FindResult) -> ValueWithExpiration[Any] | None:
        if result.type != dht_pb2.FOUND_DICTIONARY:
            return None
        try:
            items = read_dictionary(result.value)
        except PeerError as error:
            log.info("found no dictionary: %s", error)
            return None
        return to_dictionary([item for item in items if self._is_good(key, *item)])

    def _is_good(self, key: DHTID, subkey: str, value: bytes, expiration: float) -> bool:
        try:
            check(key.to_bytes(), subkey, unwrap(value), expiration, now_ms(), verify)
        except PeerError as error:
            log.info("found a bad record of %s: %s", subkey[:60], error)
            return False
        return True

    def _nearest(self, result: dht_pb2.FindResult) -> dict[DHTID, PeerID]:
        nearest = {}
        for node_id, peer_id in list(zip(result.nearest_node_ids, result.nearest_peer_ids))[:BUCKET]:
            if len(peer_id) <= 64 and node_id == place_of(peer_id):
                nearest[DHTID.from_bytes(node_id)] = PeerID(peer_id)
        return nearest


# hivemind has no other way to say which classes its node is made of.
hivemind.dht.node.DHTProtocol = DirectoryProtocol
hivemind.dht.protocol.DHTLocalStorage = HivemindStorage

_running: set[asyncio.Task[Any]] = set()


def keep(work: Any) -> None:
    """Run a coroutine in the background. The event loop holds tasks weakly only."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)


async def create_node(control: str) -> DHTNode:
    """Attach to the p2pd whose control socket is at the multiaddr `control`."""
    p2p = await P2P.replicate(Multiaddr(control))
    return await DHTNode.create(
        p2p=p2p,
        node_id=DHTID.from_bytes(place_of(p2p.peer_id.to_bytes())),
        bucket_size=BUCKET,
        num_replicas=REPLICAS,
        wait_timeout=RPC_SECONDS,
        parallel_rpc=64,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        cache_refresh_before_expiry=0,
        reuse_get_requests=False,
        blacklist_time=RPC_SECONDS,
        backoff_rate=1.0,
    )


async def close_node(node: DHTNode) -> None:
    await node.shutdown()
    await node.p2p.shutdown()


def id_of(key: str) -> DHTID:
    """Where hivemind keeps what stands under a key."""
    return DHTID.from_bytes(key_hash(key))


async def answer(node: DHTNode, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request of the directory process. Raises ValueError for an unknown one, and what hivemind raises."""
    match request:
        case {"op": "meet", "peer": str(peer)}:
            return {"met": await meet(node, PeerID.from_base58(peer))}
        case {"op": "store", "key": str(key), "subkey": str(subkey), "record": bytes(record), "expiration": float(at)}:
            others = [PeerID.from_base58(peer) for peer in request["also"]]
            one = [id_of(key)], [wrap(record)], [at], [subkey]
            stores = (node.protocol.call_store(other, *one) for other in others)
            stored, *_ = await asyncio.gather(node.store(key, record, at, subkey=subkey), *stores)
            return {"stored": bool(stored)}
        case {"op": "get", "key": str(key)}:
            answered: list[str] = []
            _answered.set(answered)
            found = await node.get(key, latest=True)
            items = found.value if found is not None else {}
            for subkey, (record, at) in items.items():
                node.protocol.storage.store_subkey(id_of(key), subkey, wrap(record), at)
            return {
                "items": [[subkey, value, expiration] for subkey, (value, expiration) in items.items()],
                "heard": len(answered),
            }
        case {"op": "status"}:
            stored = node.protocol.storage.records.all(now_ms())
            return {
                "peers": len(node.protocol.routing_table.uid_to_peer_id),
                "records": sum(len(records) for records in stored.values()),
            }
    raise ValueError(f"unknown request {str(request.get('op'))[:40]!r}")


async def meet(node: DHTNode, peer: PeerID) -> bool:
    """Get acquainted with a peer and, through it, with those around our own place."""
    place = await node.protocol.call_ping(peer)
    if place is None:
        return False
    await node.protocol.update_routing_table(place, peer)
    await node.find_nearest_nodes([node.node_id])
    return True
