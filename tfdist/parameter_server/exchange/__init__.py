"""Values that workers and ps exchange: how often, in how many bits, and a report."""
