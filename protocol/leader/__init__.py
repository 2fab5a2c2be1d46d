"""What the leader of a view decides: who goes, who comes, when a step begins and counts."""
