"""A wind tunnel for cross-datacenter LLM serving: real Linux TCP over an emulated WAN, in virtual time."""
