"""In a checkout the plugin is there without being installed."""

pytest_plugins = ["testbed.pytest_plugin"]
