"""Storms: processes and brokers end at random, and nothing may die of a signal that nobody sent.

`make storms` runs both: `python -m system_test.storms takeovers` and `python -m system_test.storms restarts`.
"""
