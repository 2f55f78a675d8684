"""`python -m mirror`."""

from __future__ import annotations

from mirror.cli import main

if __name__ == "__main__":
    main()
