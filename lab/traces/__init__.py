"""What nodes' traces tell."""
