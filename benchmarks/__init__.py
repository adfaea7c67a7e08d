"""The programs behind every figure in the README: `make bench BENCH_MB=200`."""
