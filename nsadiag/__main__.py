"""`python -m nsadiag`."""

from nsadiag.cli import main

if __name__ == "__main__":
    main()
