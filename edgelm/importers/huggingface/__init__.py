"""Folders in Hugging Face's layout."""
