"""Replays that are killed again and again: run it with `python -m system_test.replay_kills`."""
