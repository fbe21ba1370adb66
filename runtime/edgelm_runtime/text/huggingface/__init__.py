"""Hugging Face's tokenizer.json as a `Tokenizer`. Reading one needs the package `tokenizers`; running it does not."""
