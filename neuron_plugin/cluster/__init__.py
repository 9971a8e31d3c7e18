"""The API server: list, watch, bind, patch, as small typed records."""
