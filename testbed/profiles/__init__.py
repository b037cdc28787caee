"""Profiles of hardware on disk: what computing cost where somebody measured it."""
