"""What the server counts, and how it is scraped."""
