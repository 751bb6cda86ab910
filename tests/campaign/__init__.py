"""Kills, full disks, hostile files and requests, drawn by a seed: `python -m campaign --help`."""
