"""Kills, full disks, hostile files, requests and numbers, drawn by a seed: `python -m campaign --help`."""
