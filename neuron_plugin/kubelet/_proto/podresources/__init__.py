"""Generated from protos/ (podresources)."""
