"""``framefit fit``: the loop that plans, takes a step, plans again, and proves the result."""
