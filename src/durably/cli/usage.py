"""The mistake that only the person at the command line can correct."""


class Usage(Exception):
    """The command cannot be meant as it was given; the message says what to write instead."""
