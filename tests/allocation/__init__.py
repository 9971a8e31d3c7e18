"""Tests of the allocation room."""
