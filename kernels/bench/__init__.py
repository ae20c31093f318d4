"""`python -m kernels.bench`: times subjects on one GPU, judges them in the same run, ranks only what is right."""
