"""The commands that train, evaluate and describe: each module or folder adds its parser and carries out the command.

To keep `pipetrain --help` fast, these modules import slow libraries, torch above all, only to carry out a command. They
may import every room; without planning, reporting or a plugin the rest still work.
"""
