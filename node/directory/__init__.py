"""The DHT, in a process of its own, and the records in it."""
