"""What a stage can be filled from: copies, disks, donors, and the ladder of ways to rebuild it."""
