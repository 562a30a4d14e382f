"""Programs in TF1 style, in graph mode, which every task of a cluster runs."""
