"""Speed and memory, side by side. Each script prints a table and writes JSON to `benchmarks/results/`."""
