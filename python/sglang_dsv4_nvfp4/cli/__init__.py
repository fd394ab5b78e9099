"""The command line: ``sglang-dsv4-nvfp4 demo | doctor``."""
