"""Who holds what on one node, and which set a request gets or why it gets none."""
