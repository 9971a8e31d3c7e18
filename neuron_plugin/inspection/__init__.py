"""One node looked at from outside its daemon: what is there, who holds it, what is wrong."""
