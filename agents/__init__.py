"""The system under test: router, prefill, decode and client, and how KV crosses between them.

Nothing here imports the test bench. Each agent is a program of its own: `python -m agents <role> CONFIG`.
"""
