"""What a step takes over the lines that volunteers have, by arithmetic."""
