"""How a collective is measured: what goes in and must come out, when ranks begin, and which scheme is best."""
