"""The recurrence S_t = α_t S_{t-1} (I − ε_t k¹_t k¹_tᵀ) + Σ_l β^l_t δ^l_t k^l_tᵀ: definition, operands, chunk form."""
