"""The subcommands beside `run`."""
