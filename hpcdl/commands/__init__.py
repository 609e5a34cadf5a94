"""One command, one file: ``add`` declares it, and a function of its name runs it; heavy imports are late."""
