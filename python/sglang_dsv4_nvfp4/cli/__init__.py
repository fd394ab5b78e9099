"""The command line: ``sglang-dsv4-nvfp4``: its subcommands, and what they share."""
