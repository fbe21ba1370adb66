"""Tokenizers from elsewhere, converted to edgelm's own and checked against the original."""
