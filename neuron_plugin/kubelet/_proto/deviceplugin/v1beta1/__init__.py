"""Generated from protos/ (deviceplugin)."""
