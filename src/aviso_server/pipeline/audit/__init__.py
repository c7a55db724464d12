"""The audit: proves that what was acknowledged is stored and archived, or says where it is not."""
