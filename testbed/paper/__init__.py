"""The paper's numbers (arXiv 2604.15039) beside those of its model and those measured by emulation."""
