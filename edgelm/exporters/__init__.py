"""Checkpoints in other programs' formats: `write_huggingface`, `write_gguf`.

weights         this project's weights under the names of another program: the importers' rules, backwards
tokenizer_json  the tokenizer as Hugging Face's tokenizer.json
huggingface     a folder that transformers loads
gguf            a file that llama.cpp loads

What is written is read again by the importer before it takes its place, and has to be the same model.
"""
