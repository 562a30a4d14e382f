"""Variables on parameter servers, steps on workers."""
