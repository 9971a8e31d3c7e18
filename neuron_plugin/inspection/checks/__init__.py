"""What ``doctor`` asks: functions from facts to findings that touch nothing. ``table`` lists them."""
