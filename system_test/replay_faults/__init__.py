"""A campaign of replays that are disrupted: run it with `python -m system_test.replay_faults`."""
