"""The meeting point: a peer that newcomers dial first and that relays for those who cannot be dialled."""
