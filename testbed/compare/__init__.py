"""Two runs, or two sets of them, beside each other: what differs, by how much, and whether it got worse."""
