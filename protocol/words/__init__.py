"""The nouns of the protocol: peers, stages, versions, messages, events and effects, settings, views."""
