"""Data: from what a person names to the rows of a training step. Each step is a module that can be used by itself.

files         which files are data
formats       what a file's name says of its content, and how it is opened
documents     documents in pieces of bounded size
vocabulary    a byte-level BPE trained on those pieces, as a runtime tokenizer
shards        token files on disk, memory-mapped, split into training and held-out tokens
batches       which rows a step sees, as a function of the step alone
"""
