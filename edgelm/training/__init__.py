"""Training: from text to a checkpoint. Each step is a module that can be used by itself.

documents     which files are data, and how they are cut into pieces of bounded size
vocabulary    a byte-level BPE trained on those pieces, as a runtime tokenizer
shards        token files on disk, memory-mapped, split into training and held-out tokens
batches       which tokens a step sees, as a function of the step alone
config        every setting of a run, from flags or a TOML preset
run           a whole run: all of the other modules in turn
trainer       the training loop, with optimizer, precision, validation and signals beside it
report        figures, curve and display events of a run
distributed   data-parallel training under torchrun

Nothing here imports PyTorch before a run starts, so `edgelm train --help` is instant.
"""
