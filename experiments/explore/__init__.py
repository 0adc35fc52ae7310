"""The live page: a prompt, its heads, and what becomes of them when positions are taken away."""
