"""Tokens in place of passwords: what a provider returns, and the providers."""

from exactbatch.tokens.token import Token

__all__ = ["Token"]
