"""Records profiles of this machine, and takes over those that others have measured."""
