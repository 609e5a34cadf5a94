"""Exchange of compressed gradients."""
