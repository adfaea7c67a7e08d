"""The program `replayer`: reads, verifies and replays archives."""
