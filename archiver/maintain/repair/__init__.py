"""Making lost indexes and markers again: planned and shown first, and no data object is ever written."""
