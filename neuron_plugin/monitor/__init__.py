"""The state for people and dashboards: views, the monitor API, explanations and the time line.

Nothing is decided here.
"""
