"""Expected but not arrived: what is usual, learned from the past, and what of it is overdue now."""
