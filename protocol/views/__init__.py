"""Which view counts: ballots, elections, lineages that are founded, meet and end."""
