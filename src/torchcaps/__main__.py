"""`python -m torchcaps` is the command `torchcaps`."""

import sys

from torchcaps.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
