"""Positions of consumer groups, translated from an archived topic to a copy that a replay job made."""
