"""Links to other peers: the libp2p daemon, streams, frames, relays."""
