"""Training: from data to a checkpoint. Each step is a module that can be used by itself.

config        every setting of a run, from flags or a TOML preset
run           a whole run: all of the other modules in turn
run_folder    what in the run's folder is its own, and how it survives a kill
trainer       the training loop, with optimizer, loss, precision, validation and signals next to it
report        figures, curve and display events of a run
distributed   data-parallel training under torchrun

Nothing here imports PyTorch before a run starts, so `edgelm train --help` is instant.
"""
