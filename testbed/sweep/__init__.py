"""Many scenarios with many seeds: which runs are asked for, what became of them."""
