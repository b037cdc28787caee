"""Scenarios as tests: which files are scenarios, running them once in a session, looking at a run in Python.

`testbed.pytest_plugin` makes pytest use it. docs/testing.md shows it in use.
"""
