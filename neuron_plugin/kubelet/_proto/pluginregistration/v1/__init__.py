"""Generated from protos/ (pluginregistration)."""
