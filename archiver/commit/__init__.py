"""The commit protocol as generators that ask for one store or log operation at a time.

They hold no store, no clock and no thread, so that the same code runs against a real store (`Driver`), a simulator, and
an enumeration of every crash point. FORMAT.md says what is stored; docs/commit.md says why in this order.
"""
