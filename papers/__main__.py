"""`python -m papers`, run from a checkout."""

from papers.cli import main

if __name__ == "__main__":
    main()
