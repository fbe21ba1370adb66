"""Teaching: from chats to the rows of a training step. Each step is a module that can be used by itself.

chats         what a record of a data file says: a conversation, or a pair of answers
templates     the chat template that a model gets, with its special tokens
rendering     a conversation as token ids, and which of them the model is to learn
rows          rendered conversations on disk, and which of them a step sees
lora          low-rank adapters, merged into the weights at the end
dpo           the loss of a pair of answers
"""
