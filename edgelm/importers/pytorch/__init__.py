"""Files of torch.save: nanoGPT's and train-llm-from-scratch's checkpoints."""
