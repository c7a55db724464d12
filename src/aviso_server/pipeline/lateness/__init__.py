"""What is usual, learned from the archive by Spark."""
