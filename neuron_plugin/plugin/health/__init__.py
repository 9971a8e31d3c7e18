"""The health of a node's devices over time.

``policy`` says what a signal means and for how long, ``trace`` follows one signal of one device, ``status`` sums a
device up, ``record`` remembers one and ``keeper`` all of them; ``memory`` is what outlives a restart. ``watch`` feeds
the keeper from the sources and asks it when it is time, ``report`` tells people. ``look`` is all that without time, for
the command line.
"""
