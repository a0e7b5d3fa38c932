"""The pool: which job each shared machine serves."""
