"""What is said about a model file: verification, description, benchmark."""
