"""What compiled loops share: vector instructions, the layout of samples, threads, kept machine code."""
