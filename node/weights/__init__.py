"""A stage's weights on their way: donors, copies, disks."""
