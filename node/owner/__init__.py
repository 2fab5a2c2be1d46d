"""What the owner of the machine asked for: options, limits, hours, pauses."""
