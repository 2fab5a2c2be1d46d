"""`ftnode demo`, `ftnode replay` and `ftnode lab`: doors into the lab, which is loaded by name and only here."""
