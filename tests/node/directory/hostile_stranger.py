"""A plain hivemind node that sends a directory what it must not store: `python hostile_stranger.py ADDRESS KEY`.

Prints whether each of five stores was accepted, then "attacked". It runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import msgpack
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2


def nested(levels: int) -> bytes:
    data = b"\xc0"
    for _ in range(levels):
        data = msgpack.packb(msgpack.ExtType(0x40, b"\x91" + data))
    return data


async def attack(address: str, key: str) -> None:
    node = await DHTNode.create(initial_peers=[address], client_mode=False, ensure_bootstrap_success=False)
    stub = node.protocol.get_stub(PeerID.from_base58(address.rpartition("/")[2]))
    place = DHTID.generate(source=key).to_bytes()
    dictionary = msgpack.packb(msgpack.ExtType(0x50, nested(200)))
    stores = [
        (msgpack.packb("me"), msgpack.packb(b"no record"), time.time() + 30),
        (msgpack.packb("me"), msgpack.packb(b"no record"), float("inf")),
        (msgpack.packb(None), msgpack.packb(b"over the dictionary"), float("nan")),
        (b"", dictionary, time.time() + 30),
        (nested(200), nested(200), time.time() + 30),
    ]
    for subkey, value, expiration in stores:
        request = dht_pb2.StoreRequest(
            keys=[place], subkeys=[subkey], values=[value], expiration_time=[expiration], in_cache=[False],
            peer=node.protocol.node_info,
        )  # fmt: skip
        print(*(await stub.rpc_store(request, timeout=5)).store_ok)
    for keys in ([b"short"], [place] * 1000):
        try:
            await stub.rpc_find(dht_pb2.FindRequest(keys=keys, peer=node.protocol.node_info), timeout=5)
        except Exception as error:  # noqa: BLE001 - hivemind wraps what the other side raised
            logging.info("refused, as it should be: %s", error)
    print("attacked")
    await node.shutdown()


asyncio.run(attack(sys.argv[1], sys.argv[2]))
