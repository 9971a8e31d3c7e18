"""What people and dashboards see of the state: views, the monitor API, explanations and the time line.

Nothing is decided here.
"""
