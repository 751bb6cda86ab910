"""The command line: parse, call, print. torch is imported only when a command runs."""
