"""Errors a user can act on. The command line prints them as one line and exits with 2."""


class GloroError(Exception):
    """Something the caller can put right; the message says what and how."""


class ConfigError(GloroError, ValueError):
    """A setting, argument or file of settings that cannot be used."""


class DataError(GloroError):
    """A data set that is missing, damaged or not laid out as its format says."""


class UnsupportedOperation(GloroError):
    """A network does something no rule bounds. It is refused, never guessed."""


class TrainingError(GloroError):
    """Training cannot go on; the last good checkpoint is still there."""


class RankLost(TrainingError, RuntimeError):
    """The processes of one training lost each other."""


class ElsewhereError(GloroError):
    """Another process of this training failed and says why; this one leaves without a word."""
