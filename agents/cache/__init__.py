"""The hybrid prefix cache (arXiv 2604.15039): which prefixes are where. Only books: no bytes, no clock."""
