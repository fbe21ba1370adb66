"""Does a graph compute what it should? Parity with a reference, and golden vectors."""
