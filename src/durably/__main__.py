"""`python -m durably` is the command `durably`."""

import sys

from durably.cli import main

if __name__ == "__main__":
    sys.exit(main())
