"""The component ablation."""
