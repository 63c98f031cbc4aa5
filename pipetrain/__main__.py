"""`python -m pipetrain` is `pipetrain`; torchrun's `-m` needs it."""

from pipetrain.cli import main

if __name__ == "__main__":
    main()
