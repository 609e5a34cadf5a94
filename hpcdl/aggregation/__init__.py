"""Ways of summing a vector over all ranks. One algorithm, one file: drop a file in and it is selectable."""
