"""Charts as SVG, by matplotlib; only the process that writes a page imports it."""
