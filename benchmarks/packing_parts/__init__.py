"""Parts of the comparison of ways to choose."""
