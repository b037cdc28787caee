"""Packets of chosen interfaces: tcpdump writes them in the run's kernel, a summary says what is in them."""
