"""How fast the testbed is, measured: `make bench`. docs/performance.md says what each figure means."""
