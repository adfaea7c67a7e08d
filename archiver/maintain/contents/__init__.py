"""What rewritten chunks hold: of neighbours merged, of chunks converted, of chunks without erased records."""
