"""`python -m trtfuse`."""

from trtfuse.cli.main import main

if __name__ == "__main__":
    main()
