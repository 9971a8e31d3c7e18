"""Tests of the topology room, and the oracle that the allocation room is tested with, too."""
