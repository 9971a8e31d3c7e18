"""Tests of the scheduler extender, and the world they play in."""
