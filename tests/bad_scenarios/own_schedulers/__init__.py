"""Schedulers that are refused."""
