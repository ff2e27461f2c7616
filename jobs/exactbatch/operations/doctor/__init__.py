"""`exactbatch doctor`: checks of everything that a batch needs, each with its remedy."""
