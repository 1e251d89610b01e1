"""PRISM: S_t = S_{t-1} A_t + B_t with Gated DeltaNet's forgetting A_t and a rank-L write B_t."""

__version__ = "0.1.0"
