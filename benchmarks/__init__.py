"""The programs behind the figures of docs/performance.md: `make bench BENCH_MB=200`."""
