"""The file format: names of graph inputs and outputs, metadata, bytes. No other package spells them."""
