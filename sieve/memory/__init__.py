"""How much memory a replica needs and what is left for the KV cache, per rank."""
