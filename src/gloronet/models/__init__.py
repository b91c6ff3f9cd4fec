"""Networks by name or in the paper's notation; any other `nn.Module` serves as well."""

from gloronet.models.architectures import build, names

__all__ = ["build", "names"]
