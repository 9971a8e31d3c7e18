"""What `benchmarks/extender.py` measures, a module for each part and two that they share."""
